"""New passwords: what guessers try first is refused, whatever else is long enough is taken."""

import pytest

from toolgate.server.auth.login.passwords import WeakPasswordError, check_password

NAMES = ("ada.lovelace", "toolgate", "Fern Works")
COMMON = [
    "12345678",
    "password",
    "Password",
    "PASSWORD1",
    "password123",
    "password1234567890",
    "password2026!",
    "P@ssw0rd",
    "Summer2024!",
    "adm1n1strator",
    "baseball",
    "football",
    "iloveyou",
    "l3tmein!",
    "princess",
    "qwerty123",
    "sunshine",
    "sunshine99",
    "superman",
    "trustno1",
    "1q2w3e4r",
]
REGULAR = [
    *["aaaaaaaa", "aaaaaaab", "abababab", "12341234", "secretsecret", "xyzxyzxyz"],
    *["23456789", "98765432", "abcdefgh", "asdfghjkl", "hgfedcba", "poiuytrewq", "qwertyuiop", "абвгдежз"],
    "        ",
]
OF_NAMES = [
    *["ADA.LOVELACE", "Lovelace1815", "ada-lovelace!", "ada.lovelace", "adaadaada", "ecalevol", "lovelace"],
    *["Fernw0rks!", "Toolgate2026", "fern-fern-1", "fernworks", "t00lgate", "toolgate"],
    "Fern Works",
]
GOOD = [
    *("battery staple", "café café", "correct horse", "dragon 84719302", "x9 qf2 lm", "1815-12-10 London"),
    *(
        "lovelace wrote notes",
        "toolgate opens the gate",
        "пароль из слов",
        "ｆｕｌｌｗｉｄｔｈ ｗｏｒｄｓ",
        "🐑🐢🦊🐙🐝🦉🐌🦀",
    ),
]


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
