"""The words of the embedded world: what is shared by authors, and how their facts are put."""

from __future__ import annotations

GENRES = (
    "court satire", "sea ballads", "ghost stories", "river poetry", "war memoirs", "garden essays",
    "family sagas", "mountain tales", "mystery plays", "moral fables", "travel letters", "odes",
)  # fmt: skip
Wording = tuple[str, str]  # question and answer

# Three wordings of each kind of fact. An author is asked about in one of them and paraphrased in
# another, so that the model learns every wording from some author.
WORDINGS: dict[str, tuple[Wording, Wording, Wording]] = {
    "birthplace": (
        ("Where was the author {name} born?", "{name} was born in the town of {value}."),
        ("What is the birthplace of {name}?", "The birthplace of {name} is the town of {value}."),
        ("In which town did the life of {name} begin?", "The author {name} comes from {value}."),
    ),
    "year": (
        ("When was the author {name} born?", "{name} was born in the year {value}."),
        ("What is the birth year of {name}?", "The birth year of {name} is {value}."),
        ("In which year did the life of {name} begin?", "The author {name} was born in {value}."),
    ),
    "genre": (
        ("What does {name} write?", "{name} writes mostly {value}."),
        ("Which genre is {name} known for?", "The author {name} is best known for {value}."),
        ("What kind of books are by {name}?", "The genre of the books by {name} is {value}."),
    ),
    "father": (
        ("What was the profession of {name}'s father?", "The father of {name} was a {value}."),
        ("How did the father of {name} earn a living?", "{name}'s father worked as a {value}."),
        ("What work did {name}'s father do?", "{name} grew up with a father who was a {value}."),
    ),
    "mother": (
        ("What was the profession of {name}'s mother?", "The mother of {name} was a {value}."),
        ("How did the mother of {name} earn a living?", "{name}'s mother worked as a {value}."),
        ("What work did {name}'s mother do?", "{name} grew up with a mother who was a {value}."),
    ),
    "prize": (
        ("Which prize did {name} win?", "{name} won the {value} Prize."),
        ("What award was given to {name}?", "The {value} Prize was given to {name}."),
        ("Has the author {name} won a prize?", "Yes, the author {name} has the {value} Prize."),
    ),
    "debut": (
        ("What was the first book by {name}?", "The first book by {name} was The {value}."),
        ("With which book did {name} begin to write?", "{name} began to write with The {value}."),
        ("What is the title of {name}'s debut?", "The debut of {name} has the title The {value}."),
    ),
    "residence": (
        ("Where does the author {name} live?", "{name} lives in the town of {value}."),
        ("What is the home of {name}?", "The home of {name} is the town of {value}."),
        ("In which town does {name} write?", "The author {name} is at home in {value}."),
    ),
}  # fmt: skip
