"""A tool that calls a web service: the weather at a place, from Open-Meteo (https://open-meteo.com), without a key.

`ctx.web` reaches public addresses only, and checks each redirect. OPEN_METEO_URL sets another server of the same API; a
server in your own network also needs `--allow-private`.
"""

import os
from typing import Annotated
from urllib.parse import urlencode

import msgspec

from toolgate.tools import Context, ToolError, tool

SERVICE = os.environ.get("OPEN_METEO_URL", "https://api.open-meteo.com").rstrip("/")
TIME = 5.0  # seconds: it answers in well under one
SIZE = 65_536  # bytes: an answer has about five hundred
FIELDS = ("temperature_2m", "relative_humidity_2m", "wind_speed_10m", "weather_code")
SKY = {  # the first code of each group of WMO table 4677, as far as Open-Meteo uses it
    0: "clear",
    1: "mainly clear",
    2: "partly cloudy",
    3: "overcast",
    45: "fog",
    51: "drizzle",
    61: "rain",
    71: "snow",
    80: "showers",
    85: "snow showers",
    95: "thunderstorm",
}


class Current(msgspec.Struct):
    """The fields of the answer's `current`; the service leaves out unknown ones."""

    temperature_2m: float  # °C
    relative_humidity_2m: float | None = None  # %
    wind_speed_10m: float | None = None  # km/h
    weather_code: int | None = None


class Forecast(msgspec.Struct):
    current: Current


@tool(title="Weather", read_only=True)
async def get_weather(
    city: Annotated[str, msgspec.Meta(min_length=1, max_length=200), "the place's name, for the answer"],
    latitude: Annotated[float | str, "degrees north, -90 to 90"],
    longitude: Annotated[float | str, "degrees east, -180 to 180"],
    ctx: Context,
) -> str:
    """Return the weather now at a place: temperature, sky, humidity and wind.

    The place is found by its coordinates alone; look them up first if you do not know them.
    """
    asked = {
        "latitude": _degrees("latitude", latitude, 90),
        "longitude": _degrees("longitude", longitude, 180),
        "current": ",".join(FIELDS),
    }
    page = await ctx.web.fetch(f"{SERVICE}/v1/forecast?{urlencode(asked)}", limit=SIZE, timeout=TIME, redirects=3)
    if page.status != 200:
        raise ToolError(f"the weather service answered with status {page.status}; try again later")
    try:
        now = msgspec.json.decode(page.body, type=Forecast).current
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise ToolError(f"the weather service's answer can't be read: {error}") from None
    return f"Weather in {city}: {', '.join(_words(now))}"


def _degrees(name: str, value: float | str, most: int) -> float:
    """Return the number, which some models send as a string."""
    try:
        degrees = float(value)
    except ValueError:
        degrees = float("nan")
    if not -most <= degrees <= most:  # false for NaN too
        raise ToolError(f"{name} must be a number from -{most} to {most}, not {value!r}"[:200])
    return degrees


def _words(now: Current) -> list[str]:
    words = [f"{now.temperature_2m:g} °C"]
    if now.weather_code is not None:
        words.append(SKY[max(code for code in SKY if code <= max(now.weather_code, 0))])
    if now.relative_humidity_2m is not None:
        words.append(f"humidity {now.relative_humidity_2m:g} %")
    if now.wind_speed_10m is not None:
        words.append(f"wind {now.wind_speed_10m:g} km/h")
    return words
