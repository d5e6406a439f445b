import type { Kind, Kinds, ListOf, Source } from '../wire.ts'
import { ApiError, get } from './api.ts'

type Told<T> = { revision: number; id: string; object: T | null }

/**
 * All objects of one kind. They are read once, and then events of the stream keep them
 * current. rows is null until the list is read, and if no source has data. In these cases rows
 * is never an empty list.
 */
export class List<K extends Kind> {
  readonly kind: K
  rows: Kinds[K][] | null = $state.raw(null)
  sources: Source[] = $state.raw([])
  fault: ApiError | null = $state.raw(null)
  loading = $state(false)
  /** Time of the last read or change of the rows. */
  at: number | null = $state(null)

  readonly #path: string
  #byId = new Map<string, Kinds[K]>()
  #revision = 0
  #meanwhile: Told<Kinds[K]>[] = []
  #wanted = false
  #again = false
  #queued = false

  constructor(kind: K, path: ListOf<K>) {
    this.kind = kind
    this.#path = path
  }

  /** Reads the list if it was not read yet. */
  want(): void {
    if (this.#wanted) return
    this.#wanted = true
    void this.read()
  }

  /** Reads the list again if a view has used it. */
  refresh(): void {
    if (this.#wanted) void this.read()
  }

  async read(): Promise<void> {
    this.#wanted = true
    if (this.loading) {
      this.#again = true
      return
    }
    this.loading = true
    this.#meanwhile = []
    try {
      let known = true
      let revision = Infinity
      const all = new Map<string, Kinds[K]>()
      let next = ''
      do {
        const page = await get<ListOf<K>>(`${this.#path}?limit=500${next ? '&cursor=' + encodeURIComponent(next) : ''}`)
        revision = Math.min(revision, Number(page.meta.revision) || 0)
        known = page.data !== null
        for (const o of (page.data as Kinds[K][] | null) ?? []) all.set(o.id, o)
        this.sources = page.meta.sources ?? []
        next = page.meta.page?.next ?? ''
      } while (next)
      this.#byId = all
      this.#revision = Number.isFinite(revision) ? revision : 0
      for (const t of this.#meanwhile) this.#apply(t)
      this.fault = null
      this.rows = known ? [...this.#byId.values()] : null
      this.at = Date.now()
    } catch (e) {
      if (!(e instanceof ApiError)) throw e
      this.fault = e // keep the rows: last known, with their age
      if (e.denied) this.forget()
    } finally {
      this.loading = false
      this.#meanwhile = []
      if (this.#again) {
        this.#again = false
        void this.read()
      }
    }
  }

  /** Discards the rows, because the current person may not see them. */
  forget(): void {
    this.rows = null
    this.#byId.clear()
    this.#revision = 0
  }

  /** Handles one event of the stream: the new object, or null after a deletion. */
  tell(revision: number, id: string, object: Kinds[K] | null): void {
    if (!this.#wanted) return
    const told = { revision, id, object }
    if (this.loading) this.#meanwhile.push(told)
    if (this.rows === null && !this.loading) {
      this.refresh() // a source has data now
      return
    }
    this.#apply(told)
    // Many events can arrive at once; the page renders once for them.
    if (this.#queued || this.rows === null) return
    this.#queued = true
    requestAnimationFrame(() => {
      this.#queued = false
      if (this.rows !== null) {
        this.rows = [...this.#byId.values()]
        this.at = Date.now()
      }
    })
  }

  #apply(t: Told<Kinds[K]>): void {
    if (t.revision <= this.#revision) return
    if (t.object) this.#byId.set(t.id, t.object)
    else this.#byId.delete(t.id)
  }
}
