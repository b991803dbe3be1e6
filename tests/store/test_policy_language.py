"""Policies as text mean what they say, are refused at the right column, and never run anything."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from silo.errors import SiloError
from silo.records import Document
from silo.rights.licences.table import license_table
from silo.store.policy import EVERYTHING, Policy
from silo.store.policy.conditions import FIELDS, All, Among, AnyOf, Condition, Not, QuoteBelow
from silo.store.policy.language import MAX_CHARS, MAX_DEPTH, MAX_LIST
from silo.store.store import Store
from tests.store.small import SmallEncoder, document, small_store
from tests.store.test_policy import AMONG, BUCKET, DOCUMENTS, POLICIES, VALUES, trees

PLAIN = {**VALUES, "owner": ["", "A. Writer", "nobody"]}


def _mask(text: str) -> list[bool]:
    found: list[bool] = Policy.parse(text).allows(BUCKET).tolist()
    return found


def _refused(text: str) -> SiloError:
    with pytest.raises(SiloError) as caught:
        Policy.parse(text)
    assert caught.value.code == "policy-invalid"
    assert str(caught.value).encode()
    return caught.value


@st.composite
def _comparisons(draw: st.DrawFn) -> str:
    field = draw(st.sampled_from(FIELDS))
    value = st.sampled_from(PLAIN[field]).flatmap(lambda name: st.sampled_from([f'"{name}"', f"'{name}'"]))
    if draw(st.booleans()):
        names = ", ".join(draw(st.lists(value, max_size=3)))
        return f"{field} {draw(st.sampled_from(['in', 'not in']))} [{names}]"
    order = ["<", "<=", ">", ">="] if field == "tier" else []
    return f"{field}{draw(st.sampled_from(['==', ' != ', *order]))}{draw(value)}"


EXPRESSIONS = st.recursive(
    _comparisons(),
    lambda inner: st.one_of(
        inner.map(lambda text: f"not {text}"),
        inner.map(lambda text: f"( {text})"),
        *(st.tuples(inner, inner).map(word.join) for word in (" and ", "\nor ")),
    ),
    max_leaves=8,
)


def _as_python(text: str, item: Document) -> bool:
    """The language is a part of Python's, so Python says what an expression means for one document."""
    return bool(eval(text.replace("\n", " "), {}, {field: getattr(item, field) for field in FIELDS}))


@given(EXPRESSIONS)
def test_an_expression_means_for_every_document_what_python_makes_of_it(text: str) -> None:
    assert _mask(text) == [_as_python(text, item) for item in DOCUMENTS]
    assert _mask(Policy.parse(text).describe()) == _mask(text)


@given(trees(AMONG))
def test_the_text_of_a_policy_means_the_policy(condition: Condition) -> None:
    policy = Policy(condition)
    assert policy.describe().isprintable()
    assert Policy.parse(policy.describe()).allows(BUCKET).tolist() == policy.allows(BUCKET).tolist()


@given(POLICIES)
def test_a_text_with_more_than_the_language_has_is_refused_rather_than_read_as_less(policy: Policy) -> None:
    text = policy.describe()
    if "quote" in text or "document" in text:
        assert "there is no field" in _refused(text).message
    else:
        assert _mask(text) == policy.allows(BUCKET).tolist()


@pytest.mark.parametrize(
    ("policy", "text"),
    [
        (EVERYTHING, ""),
        (Policy(AnyOf()), "tier in []"),
        (Policy(Not(All())), "not tier not in []"),
        (Policy.of(tiers=["pd", "by"], owners=["é"]), 'tier in ["by", "pd"] and owner == "é"'),
        (
            Policy(
                All((Not(QuoteBelow(50)), AnyOf((Among("domain", frozenset("x")), Among("owner", frozenset("y"))))))
            ),
            'not quote < 50 and (domain == "x" or owner == "y")',
        ),
        (Policy.of(owners=["a\n\u202e\ud800"], without=["0f"]), r'owner == "a\n\u202e\ud800" and document != "0f"'),
    ],
)
def test_a_policy_is_written_in_one_way(policy: Policy, text: str) -> None:
    assert policy.describe() == text


@pytest.mark.parametrize("text", ["", " ", "\n\t"])
def test_an_empty_text_allows_everything(text: str) -> None:
    assert Policy.parse(text) == EVERYTHING


def test_tiers_compare_by_risk() -> None:
    assert Policy.parse("tier <= 'sw'") == Policy.of(tiers=["pd", "sw"])
    assert Policy.parse("tier > 'by'") == Policy.of(tiers=["restricted"])
    assert not any(_mask("tier < 'pd'"))


def test_ids_of_the_licence_table_may_be_written_in_any_case() -> None:
    for name, row in license_table().ids.items():
        for spelling in (name, name.upper(), row.spdx):
            assert Policy.parse(f"license == '{spelling}'") == Policy.of(licenses=[row.spdx])
    assert Policy.parse("license == 'x' and owner == 'MIT'") == Policy.of(licenses=["x"], owners=["MIT"])


def test_double_quotes_know_escapes_and_single_quotes_take_all_as_it_stands() -> None:
    assert Policy.parse(r"""owner in ["a\"\u00e9", 'b\"\n']""") == Policy.of(owners=['a"é', r"b\"\n"])


@pytest.mark.parametrize(
    ("text", "column", "said"),
    [
        ("onwer == 'a'", 1, "did you mean 'owner'?"),
        ("xyzzy == 'a'", 1, "fields are tier, license, owner, domain, source"),
        ("tier == 'pq'", 9, "tiers are pd, sw, by, restricted"),
        ("tier in ['pd', 'PD']", 16, "no tier 'PD'"),
        ("owner < 'a'", 7, "==, !=, in, not in after 'owner'"),
        ("'a' == owner", 1, "a field, 'not' or '('"),
        ("owner = 'a'", 7, "stray '='"),
        ("owner == a", 10, "a string in quotes"),
        ("owner == ['a']", 10, "a string in quotes"),
        ("owner in 'a'", 10, "'['"),
        ("owner in ['a',]", 15, "a string in quotes"),
        ("owner == 'a' 'b'", 14, "'and', 'or' or the end"),
        ("owner == 'a' and", 17, "not the end"),
        ("(owner == 'a'", 14, "')'"),
        ("owner == 'a", 10, "without an end"),
        ('owner == "a\\"', 10, "without an end"),
        ('owner == "\\x41"', 10, "an escape"),
        ("owner not ['a']", 11, "'in'"),
        ("owner == 'a' == 'b'", 14, "'and', 'or' or the end"),
    ],
)
def test_what_is_wrong_is_said_with_its_column(text: str, column: int, said: str) -> None:
    error = _refused(text)
    assert f"column {column}: " in error.message
    assert said in error.message
    assert error.hint


@pytest.mark.parametrize(
    "text",
    [
        "__import__('os').system('true')",
        "owner.__class__ == 'a'",
        "owner == f'a'",
        "lambda: 0",
        "1",
        "\0",
        "\ud800",
        "оwner == 'cyrillic'",
        "owner == “a”",
        "owner == 'a' # or tier == 'restricted'",
        "owner == 'a'; tier == 'restricted'",
        "owner == '" + "a" * MAX_CHARS + "'",
        "(" * 1_000_000,
        "'" * 1_000_000,
        "(" * 2000 + "owner == 'a'" + ")" * 2000,
        "not " * 1000 + "owner == 'a'",
        '"' + "\\" * 4000,
        "owner in ['a'" + ",''" * MAX_LIST + "]",
    ],
    ids=lambda text: ascii(text[:20]),
)
def test_hostile_texts_are_refused(text: str) -> None:
    _refused(text)


@given(
    st.text() | st.lists(st.sampled_from([*FIELDS, *"()[],<>=!'\"\\", "and", "or", "not", "in", "'pd'"])).map(" ".join)
)
def test_any_text_is_a_policy_or_refused(text: str) -> None:
    try:
        assert Policy.parse(Policy.parse(text).describe()).allows(BUCKET).tolist() == _mask(text)
    except SiloError as error:
        assert error.code == "policy-invalid"


def test_what_fits_the_limits_is_read() -> None:
    deep = "not (" * (MAX_DEPTH // 2) + "owner == 'a'" + ")" * (MAX_DEPTH // 2)
    assert _mask(deep) == _mask("owner == 'a'")
    assert Policy.parse("owner in [''" + ",''" * (MAX_LIST - 1) + "]") == Policy.of(owners=[""])
    assert len(" or ".join(["owner == 'a'"] * 200)) < MAX_CHARS
    assert Policy.parse(" or ".join(["owner == 'a'"] * 200)) == Policy.of(owners=["a"])


HELD = [
    document(
        f"d{n}",
        f"Letter {n} tells of {n * 37} apples, {n} pears and the {n}th winter of the north. " * 3,
        owner=f"owner{n % 4}",
        domain=f"domain{n % 3}",
        license=("", "CC0-1.0")[n % 2],
    )
    for n in range(24)
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    made = small_store(tmp_path_factory.mktemp("whole") / "store")
    made.add(HELD)
    return made


def _answers(store: Store, policy: Policy) -> list[object]:
    """What a store says to fixed questions, bit for bit; rows are numbers of a store's own, ids are not."""
    ids = np.array([256, *HELD[11].text.encode()], dtype=np.uint32)
    (keys,) = SmallEncoder().keys([ids])
    near = store.search(keys[::7], 8, policy, probes=2)
    said: list[object] = [near.distances.tobytes(), near.values.tobytes(), near.positions.tobytes()]
    said += [near.documents(at) for at in range(len(near.rows))]
    for prefix in (b"Letter 1", b" pears and the 3", b"zzz"):
        after = store.continuations([*prefix], policy)
        said += [after.length, after.total, after.ends, after.documents()]
        said += [item.tobytes() for item in (after.tokens, after.counts, after.positions, after.values)]
    best = store.passages("winter of the north 7", 5, policy)
    return said + [(item.document, item.first, item.end, item.score, item.tokens.tobytes()) for item in best]


@pytest.mark.parametrize(
    "text",
    [
        "owner == 'owner1' or domain == 'domain2' and tier < 'by'",
        "not (license in ['cc0-1.0'] or owner in ['owner0', 'owner2'])",
        "source != 'test'",
    ],
)
def test_answers_under_a_policy_are_those_of_a_store_of_its_documents_alone(
    store: Store, tmp_path: Path, text: str
) -> None:
    alone = small_store(tmp_path / "alone")
    alone.add([item for item in HELD if _as_python(text.replace("cc0", "CC0"), item)])
    assert _answers(store, Policy.parse(text)) == _answers(alone, EVERYTHING)
