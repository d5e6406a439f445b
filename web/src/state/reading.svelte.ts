import type { Source } from '../wire.ts'
import { ApiError, get } from './api.ts'

/**
 * One answer that a view shows. What was read last stays while it is read anew; of
 * another address nothing stays.
 */
export class Reading<T> {
  data: T | null = $state.raw(null)
  sources: Source[] = $state.raw([])
  fault: ApiError | null = $state.raw(null)
  /** Whether anything was answered yet. */
  known = $state(false)
  #path = ''
  #turn = 0

  async read(path: string): Promise<void> {
    if (path !== this.#path) {
      this.#path = path
      this.data = null
      this.fault = null
      this.known = false
    }
    const turn = ++this.#turn
    try {
      const e = await get<T>(path)
      if (turn !== this.#turn) return
      this.data = e.data
      this.sources = (e.meta.sources ?? []).filter((s) => s.status !== 'ok')
      this.fault = null
    } catch (e) {
      if (!(e instanceof ApiError)) throw e
      if (turn !== this.#turn) return
      this.fault = e
      if (e.denied || e.status === 404) this.data = null
    }
    this.known = true
  }
}
