"""A job: articles and a question file, from a JSON file of the headline's form or made up in the same shape."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any, NamedTuple

from spinf_stream.records import Article

TOPICS = (
    "a merger", "a court case", "an election", "a storm", "a new phone", "a football match", "a film award", "oil prices",
    "a bank's profit", "a strike", "a space launch", "a data leak", "a new law", "a vaccine", "house prices", "a festival",
)  # fmt: skip
STEMS = ("Does this article report {x}?", "Is {x} the main subject here?", "Would a reader learn about {x}?", "Does it quote somebody on {x}?")
WORDS = ["market", "minister", "match", "phone", "film", "shares", "goal", "vote", "chip", "song", "company", "team", "court", "police", "report", "year", "week", "people", "city", "plan", "price", "said", "would", "made", "took", "found", "told", "given", "seen", "the", "a", "of", "in", "on", "and", "for", "with", "from", "that", "its", "new", "first", "last"]

TEN_STEMS = (
    "Does this article report on {x} at all?", "Is the main subject here {x} at all?", "Would a reader learn about {x} at all?",
    "Does it quote somebody on {x} at all?", "Is there any news about {x} at all?", "Does the headline speak of {x} at all?",
    "Are there figures given for {x} at all?", "Was the text written about {x} at all?", "Is somebody angry because of {x} at all?",
    "Does the author openly praise {x} at all?",
)  # fmt: skip
HUNDRED = ["oil", "gas", "gold", "steel", "wheat", "corn", "coffee", "sugar", "cotton", "copper", "banks", "bonds", "shares", "taxes", "wages", "jobs", "strikes", "trade", "debt", "rent", "houses", "roads", "trains", "planes", "ships", "cars", "trucks", "bikes", "phones", "chips", "robots", "games", "films", "music", "books", "art", "food", "wine", "beer", "milk", "fish", "meat", "water", "rain", "snow", "storms", "floods", "fires", "drugs", "doctors", "nurses", "schools", "teachers", "students", "courts", "judges", "lawyers", "police", "crime", "prisons", "war", "peace", "spies", "borders", "voters", "parties", "kings", "queens", "mayors", "churches", "football", "tennis", "golf", "rugby", "cricket", "boxing", "cycling", "running", "swimming", "chess", "dogs", "cats", "horses", "cows", "sheep", "birds", "bees", "trees", "forests", "rivers", "lakes", "seas", "islands", "mountains", "deserts", "space", "stars", "moons", "planets", "rockets"]  # a token each


class Job(NamedTuple):
    articles: list[Article]
    scoring: dict[str, Any]  # a question file's object

    def take(self, articles: int | None, questions: int | None) -> Job:
        scoring = {**self.scoring, "queries": self.scoring["queries"][:questions]}
        return Job(self.articles[:articles], scoring)


def load(path: Path | None, articles: int = 24, questions: int = 56, words: int = 340) -> Job:
    """The file's job, or one made up: the same number of articles and questions, random words, nothing of anybody's."""
    if path is None:
        return made_up(articles, questions, words)
    raw = json.loads(path.read_text("utf-8"))
    return Job([Article(id=a["id"], text=a["text"]) for a in raw["articles"]], {"queries": raw["questions"]})


def made_up(articles: int, questions: int, words: int, seed: int = 11) -> Job:
    rng = random.Random(seed)
    texts = [Article(id=f"made-{i}", text=" ".join(rng.choices(WORDS, k=words)).capitalize() + ".") for i in range(articles)]
    asked = [stem.format(x=topic) for topic in TOPICS for stem in STEMS]
    asked += [f"Does this article report {a} together with {b}?" for a in TOPICS for b in TOPICS if a != b]
    if questions > len(asked):  # as issue 3 has them: a thousand of ten stems, 13 tokens each
        asked = [stem.format(x=x) for stem in TEN_STEMS for x in HUNDRED]
    if questions > len(asked):
        raise ValueError(f"no more than {len(asked)} questions are made up")
    queries = [{"id": f"q{i:03d}", "template": f"\n\n{q}\nAnswer:{{?}}", "options": [" yes", " no"]} for i, q in enumerate(asked[:questions])]
    return Job(texts, {"queries": queries})
