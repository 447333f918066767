/**
 * A client of redenvelope's service. The types in schema.d.ts are generated from its OpenAPI document.
 *
 * A call is one request and all of its retries. Each retry sends the same bytes, with the same `request_id` or
 * `decision_id`, which the service answers as it did the first time: nobody is decided for twice.
 */

import createClient, { type Client as Fetcher } from "openapi-fetch";
import type { components, paths } from "./schema.js";

type Schemas = components["schemas"];
export type Decision = Schemas["DecisionAnswer"];
export type Settled = Schemas["OutcomeAnswer"];
export type Outcome = Schemas["OutcomeRequest"];
export type Correction = Schemas["CorrectionRequest"];
/** The one shape of the service's errors; rows of a batch may have it. */
export type ServiceError = Schemas["Error"];
/** A user to decide for; a `request_id` is made where none is given. */
export type DecisionRequest = Omit<Schemas["DecisionRequest"], "request_id"> & { request_id?: string };

export interface Options {
  /** A token that `redenvelope token` made. */
  token?: string;
  /** Milliseconds that a call may take with all of its retries. */
  deadline?: number;
  /** Milliseconds that one attempt may take. */
  timeout?: number;
}

/** The service refused: a stable code, what is wrong, and what to do. */
export class RefusedError extends Error {
  constructor(readonly status: number, readonly code: string, message: string, readonly remedy: string) {
    super(`${message} (${code}); ${remedy}`);
    this.name = "RefusedError";
  }
}

/** No answer within the deadline. Call again with the same request: nothing is done twice. */
export class UnreachableError extends Error {
  constructor(address: string, deadline: number, attempts: number, reason: string) {
    super(`${address}: no answer within ${deadline} ms in ${attempts} attempts (${reason})`);
    this.name = "UnreachableError";
  }
}

/** Whether a row of a batch was refused. */
export function isRefused(answer: Decision | Settled | ServiceError): answer is ServiceError {
  return "code" in answer;
}

export class Client {
  private readonly service: Fetcher<paths>;

  constructor(baseUrl: string, { token, deadline = 10_000, timeout = 3_000 }: Options = {}) {
    const headers: Record<string, string> = token === undefined ? {} : { authorization: `Bearer ${token}` };
    this.service = createClient<paths>({ baseUrl, headers, fetch: (request) => retried(request, deadline, timeout) });
  }

  async decide(request: DecisionRequest): Promise<Decision> {
    return answerOf(await this.service.POST("/v1/decisions", { body: withId(request) }));
  }

  /** Up to 1,000 users; each is decided or refused on its own. */
  async decideMany(requests: DecisionRequest[]): Promise<(Decision | ServiceError)[]> {
    const body = { decisions: requests.map(withId) };
    return answerOf(await this.service.POST("/v1/decisions/batch", { body })).answers ?? [];
  }

  async settle(outcome: Outcome): Promise<Settled> {
    return answerOf(await this.service.POST("/v1/outcomes", { body: outcome }));
  }

  async settleMany(outcomes: Outcome[]): Promise<(Settled | ServiceError)[]> {
    return answerOf(await this.service.POST("/v1/outcomes/batch", { body: { outcomes } })).answers ?? [];
  }

  /** Replaces a recorded outcome that was wrong; this needs a token of the role admin. */
  async correct(correction: Correction): Promise<Settled> {
    return answerOf(await this.service.POST("/v1/corrections", { body: correction }));
  }

  /** Balances, prices, pacing, and counts of actions. */
  async campaign(): Promise<Record<string, unknown>> {
    return answerOf(await this.service.GET("/v1/campaign"));
  }
}

function withId(request: DecisionRequest): Schemas["DecisionRequest"] {
  return { ...request, request_id: request.request_id ?? crypto.randomUUID() };
}

function answerOf<T>(found: { data?: T; error?: unknown; response: Response }): T {
  if (found.response.ok && found.data !== undefined) return found.data;
  const error = found.error as Partial<ServiceError> | undefined;
  const { code, message, remedy } = { code: "unexpected_answer", message: "not from the service", remedy: "", ...error };
  throw new RefusedError(found.response.status, code, message, remedy);
}

const PASSING = new Set([429, 502, 503, 504]);

/** Sends a request until it is answered, refused for good, or the deadline is over. */
async function retried(request: Request, deadline: number, timeout: number): Promise<Response> {
  const end = Date.now() + deadline;
  for (let attempt = 1; ; attempt++) {
    let reason: string;
    let wait = 0;
    try {
      const signal = AbortSignal.timeout(Math.max(1, Math.min(timeout, end - Date.now())));
      const response = await fetch(request.clone(), { signal, redirect: "manual" });
      // The body is read here, so that one that never ends counts as an attempt too.
      const body = await response.arrayBuffer();
      const { status, headers } = response;
      if (!PASSING.has(status)) return new Response(body, { status: status || 599, headers });
      reason = `HTTP ${status}`;
      wait = 1_000 * Number(headers.get("retry-after") ?? 0) || 0;
    } catch (error) {
      reason = String((error as Error).cause ?? error);
    }
    const pause = Math.max(wait, Math.min(50 * 2 ** attempt, 2_000) * (0.5 + Math.random() / 2));
    if (Date.now() + pause >= end) throw new UnreachableError(request.url, deadline, attempt, reason);
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}
