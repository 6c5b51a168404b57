"""Terms of texts in many languages."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from khala.domain.search_terms import MAX_TERMS, stems, term_keys, terms

ONE, OTHER = UUID(int=1), UUID(int=2)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("My dog's name is Rex.", ["my", "dog", "s", "name", "is", "rex"]),
        ("CAFÉ, ﬁne; naïve", ["cafe", "fine", "naive"]),
        ("walking", ["walking", "walki*"]),
        ("Straße", ["strasse", "stras*"]),
        ("Привет, мир", ["привет", "приве*", "мир"]),
        ("私は犬", ["私は", "は犬"]),
        ("猫", ["猫"]),
        ("한국어", ["한국", "국어"]),
        ("ﾃｽﾄ", ["テス", "スト"]),
        ("הַכֶּלֶב", ["הכלב"]),
        ("الكَلْب", ["الكلب"]),
        ("हिन्दी में", ["हिन्दी", "हिन्द*", "में"]),
        ("สวัสดี", ["สว", "วั", "ัส", "สด", "ดี"]),
        ("C++ 3.14 user@example.com", ["c", "3", "14", "user", "example", "examp*", "com"]),
        ("GPT4です", ["gpt4", "です"]),
        ("…!? ", []),
        ("", []),
    ],
)
def test_a_text_is_split_into_words_or_pairs_of_characters(text: str, found: list[str]) -> None:
    assert list(terms(text)) == found


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("我住在北京的一个公寓里", "北京"),
        ("我屋企養咗兩隻貓", "兩隻貓"),
        ("私の犬の名前はポチです", "名前"),
        ("ฉันชอบดื่มชาเขียว", "ดื่มชา"),
        ("ຂ້ອຍມັກດື່ມກາເຟ", "ກາເຟ"),
        ("ខ្ញុំរស់នៅភ្នំពេញ", "ភ្នំពេញ"),
        ("ကျွန်တော်ရန်ကုန်မှာနေတယ်", "ရန်ကုန်"),
        ("ၵဝ်ယူႇတီႈတူၼ်ႈတီး", "တူၼ်ႈတီး"),
        ("ང་བོད་ལ་སྡོད་ཀྱི་ཡོད", "བོད"),
        ("ꦲꦏꦸꦲꦺꦴꦩꦃꦲꦶꦁꦪꦺꦴꦒꦾꦏꦂꦠ", "ꦪꦺꦴꦒꦾꦏꦂꦠ"),
        ("ᬢᬶᬬᬂᬚᬸᬫᬳᬶᬂᬩᬮᬶ", "ᬩᬮᬶ"),
        ("ꉢꆏꆈꌠꃅꄷ", "ꆈꌠ"),
    ],
)
def test_a_word_is_found_within_a_text_without_spaces_in_twelve_languages(text: str, word: str) -> None:
    assert set(terms(word)) <= set(terms(text))
    assert {stem for stem, _ in stems(word)} <= {stem for stem, _ in stems(text)}


def test_other_forms_of_a_long_word_share_a_term_of_lower_weight() -> None:
    one, other = terms("walking"), terms("walkies")
    assert {term: weight for term, weight in one.items() if term in other} == {"walki*": 0.4}


@given(st.text(max_size=3000))
def test_the_number_of_terms_is_bounded_and_case_does_not_matter(text: str) -> None:
    found = terms(text)
    assert len(found) <= MAX_TERMS
    assert terms(f"{text} ") == found


@given(st.lists(st.text(max_size=20), max_size=20))
def test_keys_fit_into_32_bits_and_belong_to_one_space(found: list[str]) -> None:
    keys = term_keys(ONE, found)
    assert keys == term_keys(ONE, found)
    assert all(-(1 << 31) <= key < 1 << 31 for key in keys)
    assert not found or keys != term_keys(OTHER, found)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Review the tests, please", [("revie", "review"), ("test", "tests")]),
        ("process_reviews", [("proce", "process"), ("revie", "reviews")]),
        ("Où est la Prüfung über ES?", [("prufu", "prufung")]),
        ("a b 7 gas", [("gas", "gas")]),
        ("日本語", [("日本", "日本"), ("本語", "本語")]),
        ("", []),
    ],
)
def test_stems_are_of_words_that_say_something(text: str, found: list[tuple[str, str]]) -> None:
    assert stems(text) == found
    assert stems(f"{text} {text}") == [*found, *found]
    assert stems(text, limit=1) == found[:1]
