/** The API said no, or that it cannot now. */
export class ApiError extends Error {
  override readonly name = "ApiError";
  /** The HTTP status. */
  readonly status: number;
  /** Stable: branch on this. */
  readonly code: string;
  /** Which member or parameter is wrong, and how. */
  readonly fields: Readonly<Record<string, string>>;
  /** Quote it to an operator. */
  readonly requestId: string;
  /** How long the server asked to wait, where it did. */
  readonly retryAfterMs: number | undefined;

  constructor(status: number, error: ErrorDetail, retryAfterMs: number | undefined) {
    super(error.message ?? error.code);
    this.status = status;
    this.code = error.code;
    this.fields = error.fields ?? {};
    this.requestId = error.requestId ?? "";
    this.retryAfterMs = retryAfterMs;
  }
}

/** No answer came; whether the request was carried out is not known. */
export class TransportError extends Error {
  override readonly name = "TransportError";
  readonly kind: "timeout" | "network";
  readonly tries: number;

  constructor(kind: "timeout" | "network", at: string, tries: number, cause: unknown) {
    super(kind === "timeout" ? `no answer in time from ${at} (tries: ${tries})` : `no answer from ${at} (tries: ${tries})`, { cause });
    this.kind = kind;
    this.tries = tries;
  }
}

/** An answer came that is none of this API: a proxy's page, a redirect, a body without what it must have. */
export class UnreadableAnswerError extends Error {
  override readonly name = "UnreadableAnswerError";
  readonly status: number;

  constructor(status: number, wrong: string) {
    super(`the answer (status ${status}) is none of this API: ${wrong}`);
    this.status = status;
  }
}

interface ErrorDetail {
  code: string;
  message?: string;
  fields?: Record<string, string>;
  requestId?: string;
}

/** A response that is no success, as an error. */
export function errorOf(status: number, body: string, retryAfterMs: number | undefined): ApiError | UnreadableAnswerError {
  let detail: Partial<ErrorDetail> | null | undefined;
  try {
    detail = (JSON.parse(body) as { error?: Partial<ErrorDetail> } | null)?.error;
  } catch {
    detail = undefined;
  }
  if (typeof detail?.code === "string") return new ApiError(status, { ...detail, code: detail.code }, retryAfterMs);
  // A browser hides the status of a redirect that is not followed: it shows as 0.
  if (status === 0 || (status >= 300 && status < 400)) {
    return new UnreadableAnswerError(status, "it points to another address, and a token is not sent after it; name the right address");
  }
  return new UnreadableAnswerError(status, "it has no {error:{code,…}}; is the address right, and is there a proxy in between?");
}
