import type { Response as Answer, Data, Path, Source } from '../wire.ts'
import { ApiError, get } from './api.ts'

/** The rows of a list, as a page shows them. null: not known. */
export interface Rows<R> {
  readonly rows: R[] | null
  readonly sources: Source[]
  readonly fault: ApiError | null
  readonly loading: boolean
  readonly at: number | null
  want(): void
  read(): Promise<void>
}

type Row<P extends Path> = NonNullable<Data<P>> extends (infer R)[] ? R : never

/** A list that the event stream does not have. It is read when a page wants it, and whenever a page asks again. */
export abstract class Asked<R> implements Rows<R> {
  rows: R[] | null = $state.raw(null)
  sources: Source[] = $state.raw([])
  fault: ApiError | null = $state.raw(null)
  loading = $state(false)
  at: number | null = $state(null)
  #wanted = false

  want(): void {
    if (this.#wanted) return
    this.#wanted = true
    void this.read()
  }

  abstract read(): Promise<void>

  /** Reads a path and takes its rows, unless the list is being read. */
  protected async ask<P extends Path>(path: string, take: (e: Answer<`GET ${P}`>) => void): Promise<void> {
    if (this.loading) return
    this.loading = true
    try {
      const e = await get<P>(path)
      take(e)
      this.sources = e.meta.sources ?? []
      this.fault = null
      this.at = Date.now()
    } catch (x) {
      if (!(x instanceof ApiError)) throw x
      this.fault = x
      if (x.denied) this.rows = null
    } finally {
      this.loading = false
    }
  }
}

/** A list that the server asks others for, so it is read again and again while a page shows it. */
export class Polled<P extends Path> extends Asked<Row<P>> {
  /** Rows that the limit of the server left off. */
  left = $state(0)
  readonly #path: P
  readonly #every: number

  constructor(path: P, every: number) {
    super()
    this.#path = path
    this.#every = every
  }

  read(): Promise<void> {
    return this.ask<P>(this.#path, (e) => {
      this.rows = e.data as Row<P>[] | null
      this.left = (e.meta.page?.total ?? 0) - (this.rows?.length ?? 0)
    })
  }

  /** Reads again and again until the returned function is called. A hidden page does not read. */
  follow(): () => void {
    const timer = setInterval(() => {
      if (!document.hidden) void this.read()
    }, this.#every)
    return () => clearInterval(timer)
  }
}
