"""Slots: text {*}, numbers {n} and amounts {$}, extracted below the trunk that the questions were read from.

    question file -> SlotQuery -> SlotSet: Slot + Automaton (arrays)           build.py, automaton.py, grammar.py
    article -> Copies: what copy-only slots may copy                           candidates.py, spans.py
    pass -> trunks kept -> steps: Program -> rows -> reads -> ... -> endings   decoding.py, search.py, copying.py, generate.py
    endings -> answers: text, value, currency, p, place in the article         answers.py, value.py

A slot is searched (beam search), copied (`mode: "copy_only"`: nothing but what stands in the article, and cheaper) or
generated. What crosses the seam to the engine is arrays; texts and grammars stay on this side. reference.py says the same
one slot at a time, over strings, and is what the tests compare with.

Offsets (`start`, `end`) count code points of the content as assembled: title, blank line, text; without a title the text.
"""
