/**
 * How often a request is tried and how long is waited in between: the contract that the API tells its clients.
 *
 * The wait before try n + 1 is drawn from 0 to `baseMs × 2ⁿ⁻¹`, at most `capMs`: full jitter, because callers that were turned
 * away together must not come back together. A `Retry-After` of the server comes on top of the draw and so is the least that is
 * waited, up to `longestRetryAfterMs`.
 */
export interface Retries {
  /** Tries in all; 1 is none again. */
  readonly tries: number;
  readonly baseMs: number;
  readonly capMs: number;
  readonly longestRetryAfterMs: number;
}

export const DEFAULT_RETRIES: Retries = { tries: 3, baseMs: 250, capMs: 8_000, longestRetryAfterMs: 300_000 };

/** The wait after the `failed`-th try (from 1). `draw` is uniform in 0..1. */
export function waitMs(retries: Retries, failed: number, retryAfterMs: number | undefined, draw: number): number {
  const ceiling = Math.min(retries.baseMs * 2 ** Math.min(failed - 1, 63), retries.capMs);
  return Math.min(retryAfterMs ?? 0, retries.longestRetryAfterMs) + ceiling * draw;
}

/** Whether a status is worth another try. */
export function isWorthIt(status: number): boolean {
  return status === 429 || (status >= 500 && status < 600);
}

/**
 * The server's `Retry-After`: seconds, or a moment, which is measured against the server's own `Date`, for our clock may be
 * another. What cannot be read counts as not said.
 */
export function retryAfterMs(headers: Pick<Headers, "get">, now: () => number = Date.now): number | undefined {
  const said = headers.get("retry-after")?.trim();
  if (!said) return undefined;
  if (/^\d+$/.test(said)) return Number(said) * 1000;
  // A moment begins with a weekday; Date.parse alone would read "1.5" and "-3" as years.
  const at = /^[A-Z][a-z]+,? /.test(said) ? Date.parse(said) : Number.NaN;
  if (Number.isNaN(at)) return undefined;
  const date = Date.parse(headers.get("date") ?? "");
  return Math.max(0, at - (Number.isNaN(date) ? now() : date));
}
