import type { components } from "./schema.js";
import { QUESTION, SENTENCES, UNKNOWN } from "./sentences.js";

export type Diagnostics = components["schemas"]["SearchDiagnostics"];

interface Common {
  /** How it came about: what was done, how long it took, what is on its way. */
  readonly diagnostics: Diagnostics;
  /** The question as the server understood it. */
  readonly query: string;
  /** Where the list goes on; it has ended only when there is none, not when a page is empty. */
  readonly nextCursor?: string;
}

/** Everything that could be looked at was. */
export interface Whole<Hit> extends Common {
  readonly degraded: false;
  readonly results: readonly Hit[];
}

/**
 * Something could not be looked at: there may be more and better results than these. They have another name than a whole
 * answer's on purpose, so that nobody reads them without having asked which kind of answer it is.
 */
export interface Degraded<Hit> extends Common {
  readonly degraded: true;
  readonly partialResults: readonly Hit[];
  /** What to show a person above them. */
  readonly sentence: string;
}

/** `results` is a type error until `degraded` has been looked at. */
export type Answer<Hit> = Whole<Hit> | Degraded<Hit>;

/** The results of either kind, after `say` was told why they are not all; it is not called for a whole answer. */
export function tell<Hit>(answer: Answer<Hit>, say: (sentence: string, diagnostics: Diagnostics) => void): readonly Hit[] {
  if (!answer.degraded) return answer.results;
  say(answer.sentence, answer.diagnostics);
  return answer.partialResults;
}

/** The operator's notice, else a fixed sentence for each reason; empty for a whole answer. */
export function sentenceOf(diagnostics: Diagnostics): string {
  if (!diagnostics.degraded) return "";
  const notice = diagnostics.notice?.trim();
  if (notice) return notice;
  const sentences = new Set((diagnostics.reasons ?? []).map((reason) => sentenceFor(reason.code)));
  return sentences.size > 0 ? [...sentences].join(" ") : UNKNOWN;
}

function sentenceFor(code: string): string {
  // Own members only: a code like "constructor" is not one of ours.
  if (Object.hasOwn(SENTENCES, code)) return SENTENCES[code] ?? UNKNOWN;
  return code.startsWith("question_") ? QUESTION : UNKNOWN;
}

interface Wire<Hit> {
  results: Hit[];
  diagnostics: Diagnostics;
  query: string;
  pagination?: { nextCursor?: string | null };
}

/** From what came over the wire, of which nothing is certain; `undefined` when it does not say how whole it is. */
export function answerOf<Hit>(wire: Partial<Wire<Hit>> | null): Answer<Hit> | undefined {
  const { results, diagnostics, query, pagination } = wire ?? {};
  if (!Array.isArray(results) || typeof diagnostics?.degraded !== "boolean") return undefined;
  const next = pagination?.nextCursor;
  const common = { diagnostics, query: query ?? "", ...(next ? { nextCursor: next } : {}) };
  return diagnostics.degraded
    ? { degraded: true, partialResults: results, sentence: sentenceOf(diagnostics), ...common }
    : { degraded: false, results, ...common };
}
