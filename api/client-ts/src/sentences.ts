// One wording per reason; the Rust client has the same ones, and one of its tests compares them with this file.
export const SENTENCES: Readonly<Record<string, string>> = {
  stopped: "Searching by meaning is paused for now; this answer is by words alone. Everything you handed in is stored safely.",
  held: "Some of what you handed in waits for something that is paused; it is stored safely and will be finished by itself.",
  behind: "Some of what you handed in is still being worked on; it will be found later.",
  dead: "Some of what you handed in could not be finished; it is stored safely, and an operator can have it tried again.",
  parked: "Some of what you handed in was set aside for an operator to look at; it is stored safely.",
  reindexing: "Some of what you handed in is being indexed anew; until that is done it is found by its words alone.",
  outage: "Searching by meaning gets no answer just now; this answer is by words alone.",
  no_worker: "Nobody is at work to search by meaning just now; this answer is by words alone.",
  no_endpoint: "Searching by meaning is not set up here; this answer is by words alone.",
  rate_limited: "Searching by meaning is in too great demand just now; this answer is by words alone.",
  semantic_failed: "Searching by meaning did not work just now; this answer is by words alone.",
  keyword_failed: "Searching by words did not work just now; this answer is by meaning alone.",
  diagnostics_failed: "How whole this answer is could not be told just now.",
};

/** All reasons that begin with `question_`: the question itself got no vector. */
export const QUESTION = "The question could not be searched by meaning in time; this answer is by words alone.";

/** For a reason that this version does not know: less than the truth, and nothing but. */
export const UNKNOWN = "This answer may not be whole.";
