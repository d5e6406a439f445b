import type { Recording, Source } from '../wire.ts'
import { ApiError, get } from './api.ts'
import type { Rows } from './polled.svelte.ts'

/** The recordings of the recorder, page by page. They are read only when a person asks, because each list is in the recorder's audit log. */
export class Recorded implements Rows<Recording> {
  rows: Recording[] | null = $state.raw(null)
  sources: Source[] = $state.raw([])
  fault: ApiError | null = $state.raw(null)
  loading = $state(false)
  at: number | null = $state(null)
  /** Where the next page begins; "": there is none. */
  next = $state('')
  #wanted = false

  want(): void {
    if (this.#wanted) return
    this.#wanted = true
    void this.read()
  }

  read(): Promise<void> {
    return this.#read('')
  }

  older(): Promise<void> {
    return this.#read(this.next)
  }

  async #read(before: string): Promise<void> {
    if (this.loading) return
    this.loading = true
    try {
      const e = await get<'/recordings'>(before ? `/recordings?before=${before}` : '/recordings')
      this.sources = e.meta.sources ?? []
      if (e.data || !before) {
        // A recorder that is down takes no page away that was read before.
        this.rows = e.data && before ? [...(this.rows ?? []), ...e.data] : e.data
        this.next = e.meta.page?.next ?? ''
      }
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
