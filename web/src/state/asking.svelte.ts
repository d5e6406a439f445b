import { ApiError } from './api.ts'

/** What is asked of the server: whether it is at it, and how it last refused. */
export class Asking {
  busy = $state(false)
  fault: ApiError | null = $state.raw(null)

  /** Does what asks the server. A refusal of it is kept; anything else is thrown. */
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
