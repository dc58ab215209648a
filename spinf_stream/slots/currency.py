"""Currencies as they are written, and what each is called in a record.

The four symbols that the peer knows stay symbols ($ € £ ¥), however they were written; every other currency is its
ISO 4217 code. A bare $ may be another country's dollar: only the text knows.
"""

from __future__ import annotations

SYMBOLS: dict[str, str] = {
    "$": "$", "€": "€", "£": "£", "¥": "¥",
    "US$": "$", "A$": "AUD", "AU$": "AUD", "C$": "CAD", "CA$": "CAD", "HK$": "HKD", "NZ$": "NZD", "S$": "SGD", "NT$": "TWD",
    "R$": "BRL", "MX$": "MXN", "CN¥": "CNY", "₹": "INR", "₩": "KRW", "₽": "RUB", "₺": "TRY", "₴": "UAH", "₪": "ILS", "₫": "VND",
    "₱": "PHP", "₦": "NGN", "฿": "THB", "zł": "PLN",
}  # fmt: skip

_CODES = (
    "AED ARS AUD BRL CAD CHF CLP CNY COP CZK DKK EGP EUR GBP HKD HUF IDR ILS INR JPY KES KRW KWD MXN MYR NGN NOK NZD "
    "PHP PKR PLN QAR RON RUB SAR SEK SGD THB TRY TWD UAH USD VND ZAR"
)
CODES: dict[str, str] = {code: code for code in _CODES.split()} | {"USD": "$", "EUR": "€", "GBP": "£", "JPY": "¥", "RMB": "CNY"}

WRITTEN: dict[str, str] = SYMBOLS | CODES  # as written -> as reported
