/**
 * A client of Steadfast's HTTP API. Its types come from the API's own description (`schema.ts`, written by `../generate`).
 *
 * Search narrows rather than fails, and says so. So `search()` returns a union: `results` is there only once `degraded` has been
 * looked at.
 *
 *     const answer = await client.search("when must the renter move out");
 *     if (answer.degraded) show(answer.partialResults, answer.sentence);
 *     else show(answer.results);
 */
export { sentenceOf, tell, type Answer, type Degraded, type Diagnostics, type Whole } from "./answer.js";
export * from "./client.js";
export { ApiError, TransportError, UnreadableAnswerError } from "./errors.js";
export { DEFAULT_RETRIES, type Retries } from "./retry.js";
