"""Slots: text {*}, numbers {n} and amounts {$}, extracted below the trunk that the questions were read from.

    question file -> SlotQuery -> SlotSet: Slot + Automaton (arrays)           build.py, automaton.py, grammar.py
    article -> Copies: what copy-only slots may copy                           candidates.py, spans.py
    pass -> trunks kept -> steps: Program -> rows -> reads -> ... -> endings   decoding.py, search.py, copying.py, generate.py
    endings -> answers: text, value, currency, p, place in the article         answers.py, value.py

A slot is searched (beam search), copied (`mode: "copy_only"`: nothing but what stands in the article, and cheaper) or
generated. What crosses the seam to the engine is arrays; texts and grammars stay on this side. reference.py says the same
one slot at a time, over strings, and is what the tests compare with.

Offsets (`start`, `end`) count code points of the content as assembled: title, blank line, text; without a title the text.

An answer's p is the probability that exactly this answer, in any of its spellings, follows the template and ends there. It
is small: much else may follow, and a number may go on. Right answers of the demo model have a p of about 0.05, so p alone
is no confidence; p / mass, the answer's `share`, is (its Brier score is 0.07 to 0.25 where that of p is 0.29 to 0.85). Both rank answers:
`python bench/slots.py accuracy --data ../shared/data/bbc_test.jsonl`, bench/results/slots-accuracy-cpu2.json.

What a slot costs on a CPU and on a card, kind by kind, stands in the README (`python bench/slots.py cost`). A CPU gains little
from decoding together; on a card a step costs what eight rows of each of 48 slots cost. How far copied text is computed ahead
(copying.AHEAD), mean rows and steps of 32 slots of 16 news articles: nothing ahead 18.4 in 6.7, below the likeliest path one token
19.7 in 5.9, two 20.7 in 5.6 (as it is), three 22.2 in 5.4; below every path one token 22.7 in 5.1, three tokens of up to three ways each 44.8 in 3.3; a
search takes 21.7 in 6.1. Copied numbers take whole subtrees: 21.8 rows in 2 steps on 12 of them (a search 24.0 in 6.4), amounts
10.9 in 2.2. Opened token by token, and only where a better answer is still possible, they would take 20.5 in 7.1 and 10.1 in 5.9.

Who decodes: an executor with `grow` (engine/grow.py). torch_grow.py anywhere; engine/gpu/decode.py on the fused kernels of a
card, where gates at start-up (engine/gpu/slot_gates.py) decide whether slots are accepted. At most max_slots slots a question file or pack.
"""
