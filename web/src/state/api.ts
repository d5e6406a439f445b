// Requests to the server. The tailnet connection identifies the caller, so the page neither
// stores nor sends an identity.
import type { Envelope, Fault, Operation, Path, Response as Answer } from '../wire.ts'

/** An error response of the server, or a missing response. */
export class ApiError extends Error {
  readonly status: number
  readonly fault: Fault
  readonly requestId: string

  constructor(status: number, fault: Fault, requestId: string) {
    super(fault.message)
    this.status = status
    this.fault = fault
    this.requestId = requestId
  }

  get advice(): string {
    return this.fault.advice?.join(' ') ?? ''
  }

  get denied(): boolean {
    return this.status === 401 || this.status === 403
  }
}

const base = '/api/v1'

export async function get<P extends Path>(path: string, signal?: AbortSignal): Promise<Answer<`GET ${P}`>> {
  return read<Answer<`GET ${P}`>>(await ask(path, signal ? { signal } : {}))
}

export async function send<O extends Operation>(method: 'POST' | 'DELETE' | 'PATCH', path: string, body: unknown, key = fresh()): Promise<Answer<O>> {
  return read<Answer<O>>(
    await ask(path, {
      method,
      body: JSON.stringify(body),
      headers: { 'Content-Type': 'application/json', 'Idempotency-Key': key },
    }),
  )
}

/** Returns one page of a response unchanged, for a download, and the cursor of the next page. */
export async function lines(path: string): Promise<{ text: Blob; next: string }> {
  const r = await ask(path, { headers: { Accept: 'application/jsonl' } })
  if (!r.ok) await read(r)
  return { text: await r.blob(), next: r.headers.get('Tailplane-Next-Cursor') ?? '' }
}

/** Passes each part of a text response to got when it arrives, until the end of the response. */
export async function text(path: string, signal: AbortSignal, got: (chunk: string) => void): Promise<void> {
  const r = await ask(path, { signal, headers: { Accept: 'text/plain' } })
  if (!r.ok || !r.body) {
    await read(r)
    return
  }
  const reader = r.body.pipeThrough(new TextDecoderStream()).getReader()
  for (;;) {
    const { done, value } = await reader.read()
    if (done) return
    got(value)
  }
}

async function ask(path: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(base + path, { credentials: 'omit', redirect: 'error', cache: 'no-store', ...init })
  } catch (cause) {
    if (cause instanceof DOMException && cause.name === 'AbortError') throw cause
    throw new ApiError(0, { code: 'unreachable', message: 'The server did not answer.', advice: ['Check that this device is connected to the tailnet.'] }, '')
  }
}

async function read<T extends Envelope>(r: Response): Promise<T> {
  const requestId = r.headers.get('X-Request-Id') ?? ''
  let body: (T & Partial<Fault>) | null = null
  try {
    body = (await r.json()) as T & Partial<Fault>
  } catch {
    // A response that is not JSON does not come from the API.
  }
  if (body?.error) throw new ApiError(r.status, body.error, body.meta?.requestId ?? requestId)
  if (!r.ok && body?.code && body.message) throw new ApiError(r.status, body as Fault, requestId) // rejected before an envelope existed
  if (!r.ok || !body || !body.meta)
    throw new ApiError(r.status, { code: 'malformed_answer', message: `The server returned status ${r.status}, but not a response of the API.`, advice: ['Reload the page.'] }, requestId)
  return body
}

/**
 * An idempotency key: a repeated request with the same key returns the first result.
 * randomUUID is not available without TLS.
 */
export function fresh(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (b) => b.toString(16).padStart(2, '0')).join('')
}
