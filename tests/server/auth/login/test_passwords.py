"""New passwords: what guessers try first is refused, whatever else is long enough is taken."""

import pytest

from toolgate.server.auth.login.passwords import WeakPasswordError, check_password

NAMES = ("ada.lovelace", "toolgate", "Fern Works")
COMMON = (
    *("12345678", "password", "Password", "PASSWORD1", "password123", "iloveyou", "qwerty123", "sunshine", "football"),
    *(
        "baseball",
        "superman",
        "princess",
        "trustno1",
        "1q2w3e4r",
        "passw0rd",
        "P@ssw0rd",
        "password2026!",
        "sunshine99",
        "Summer2024!",
    ),
)
REGULAR = (
    *("aaaaaaaa", "abababab", "12341234", "xyzxyzxyz", "abcdefgh", "hgfedcba", "23456789", "98765432", "qwertyuiop"),
    *("poiuytrewq", "asdfghjkl", "абвгдежз", "        "),
)
OF_NAMES = (
    *("ada.lovelace", "ADA.LOVELACE", "lovelace", "ecalevol", "adaadaada", "Lovelace1815", "ada-lovelace!", "toolgate"),
    *("Toolgate2026", "fernworks", "Fern Works", "fern-fern-1"),
)
GOOD = (
    *(
        "correct horse",
        "battery staple",
        "dragon 84719302",
        "café café",
        "x9 qf2 lm",
        "lovelace wrote notes",
        "toolgate opens the gate",
    ),
    *("1815-12-10 London", "пароль из слов", "ｆｕｌｌｗｉｄｔｈ ｗｏｒｄｓ", "🐑🐢🦊🐙🐝🦉🐌🦀"),
)


@pytest.mark.parametrize("password", COMMON)
def test_a_common_password_is_refused_with_what_is_better(password: str) -> None:
    with pytest.raises(WeakPasswordError, match=r"a common one.*several random words"):
        check_password(password, NAMES)


@pytest.mark.parametrize("password", REGULAR)
def test_a_sequence_and_a_repetition_are_refused(password: str) -> None:
    with pytest.raises(WeakPasswordError, match=r"a sequence or a repetition.*several random words"):
        check_password(password, NAMES)


@pytest.mark.parametrize("password", OF_NAMES)
def test_a_password_made_of_the_persons_or_the_servers_name_is_refused(password: str) -> None:
    with pytest.raises(WeakPasswordError, match=r"differ from the name.*several random words"):
        check_password(password, NAMES)


@pytest.mark.parametrize("password", GOOD)
def test_any_other_password_is_taken_whatever_its_characters(password: str) -> None:
    assert check_password(password, NAMES) == password


@pytest.mark.parametrize("password", ["q9$xW2!z", "kestrelvd"])
def test_eight_uncommon_characters_are_enough(password: str) -> None:
    assert check_password(password, ()) == password
