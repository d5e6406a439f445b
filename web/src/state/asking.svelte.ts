import { ApiError } from './api.ts'

/** The state of a request: whether it is running, and its last error. */
export class Asking {
  busy = $state(false)
  fault: ApiError | null = $state.raw(null)

  /** Runs a request. Keeps an ApiError and throws other errors. */
  async go(ask: () => Promise<void>): Promise<void> {
    this.busy = true
    this.fault = null
    try {
      await ask()
    } catch (x) {
      if (!(x instanceof ApiError)) throw x
      this.fault = x
    } finally {
      this.busy = false
    }
  }
}
