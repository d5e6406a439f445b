import type { Data, Path, Source } from '../wire.ts'
import { ApiError, get } from './api.ts'

/**
 * One response that a view shows. The last response stays during a new read of the same
 * address. For another address it is discarded.
 */
export class Reading<P extends Path> {
  data: Data<P> | null = $state.raw(null)
  sources: Source[] = $state.raw([])
  fault: ApiError | null = $state.raw(null)
  /** Whether there was a response yet. */
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
      const e = await get<P>(path)
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
