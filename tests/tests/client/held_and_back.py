"""The published client persistmemory against our API while reading scans is stopped, and when it is back.

Usage: held_and_back.py held SCAN.png                 hands a note and a scan in and looks at what it is told
       held_and_back.py back NOTE_JOB SCAN_JOB WORDS  waits for both and searches
       held_and_back.py dead SCAN.png                 hands in a scan that cannot be read and waits until it is given up
       held_and_back.py replay JOB                    puts that one back and waits

STEADFAST_URL and PERSISTMEMORY_API_KEY are set. Prints one JSON object about what it saw; the story that starts this judges it.
"""

import json
import os
import sys
import time
from pathlib import Path

from persistmemory import PersistMemory

PATIENCE = 60


def until(look, good):
    """The last thing seen, once it is good or a minute is over."""
    deadline = time.monotonic() + PATIENCE
    while True:
        seen = look()
        if good(seen) or time.monotonic() > deadline:
            return seen
        time.sleep(0.1)


def upload(client: PersistMemory, scan: str, space: str) -> dict:
    path = Path(scan)
    return client.files.upload(path.read_bytes(), filename=path.name, content_type="image/png", space_id=space)


def held(client: PersistMemory, scan: str) -> dict:
    space = list(client.spaces.list())[0]["id"]
    note = client.memories.remember("The harbour master keeps a copy.", space_ids=[space])
    scanned = upload(client, scan, space)
    # Completed: its words can be found. Held: it has been taken apart, and its page waits.
    noted = until(lambda: client.jobs.get(note["jobId"]), lambda job: job["status"] == "completed")
    waits = until(lambda: client.jobs.get(scanned["jobId"]), lambda job: job.get("hold") is not None)
    return {
        "note": note,
        "scan": scanned,
        "noteStatus": noted["status"],
        "scanJob": waits,
        "search": client.search.query("harbour master", limit=5),
    }


def back(client: PersistMemory, note: str, scan: str, words: str) -> dict:
    def completed(job_id):
        return until(lambda: client.jobs.get(job_id), lambda job: job["status"] == "completed")["status"]

    def whole(answer):
        return answer["results"] and not answer["diagnostics"]["degraded"] and answer["diagnostics"].get("pending") == 0

    return {
        "statuses": [completed(note), completed(scan)],
        "search": until(lambda: client.search.query(words, limit=5), whole),
        "dead": client.jobs.dead(),
    }


def dead(client: PersistMemory, scan: str) -> dict:
    space = list(client.spaces.list())[0]["id"]
    scanned = upload(client, scan, space)
    job = until(lambda: client.jobs.get(scanned["jobId"]), lambda job: job["status"] in ("dead", "failed", "completed"))
    return {"scan": scanned, "job": job, "dead": client.jobs.dead()}


def replay(client: PersistMemory, job_id: str) -> dict:
    replayed = client.jobs.replay(job_id, reason="the provider has learnt to read it")
    job = until(lambda: client.jobs.get(job_id), lambda job: job["status"] == "completed")
    return {"replayed": replayed, "job": job, "dead": client.jobs.dead()}


def main() -> None:
    act = {"held": held, "back": back, "dead": dead, "replay": replay}[sys.argv[1]]
    with PersistMemory(base_url=os.environ["STEADFAST_URL"]) as client:
        json.dump(act(client, *sys.argv[2:]), sys.stdout)


if __name__ == "__main__":
    main()
