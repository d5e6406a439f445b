import type { Recording } from '../wire.ts'
import { Asked } from './polled.svelte.ts'

/** The recordings of the recorder, page by page. They are read only when a person asks, because each list is in the recorder's audit log. */
export class Recorded extends Asked<Recording> {
  /** Where the next page begins; "": there is none. */
  next = $state('')

  read(): Promise<void> {
    return this.#read('')
  }

  older(): Promise<void> {
    return this.#read(this.next)
  }

  #read(before: string): Promise<void> {
    return this.ask<'/recordings'>(before ? `/recordings?before=${before}` : '/recordings', (e) => {
      if (!e.data && before) return // a recorder that is down takes no page away that was read before
      this.rows = e.data && before ? [...(this.rows ?? []), ...e.data] : e.data
      this.next = e.meta.page?.next ?? ''
    })
  }
}
