import type { Terminal } from '@xterm/headless'
import { resized, type Cast } from '../text/cast.ts'
import { lines, type Run } from '../text/screen.ts'

/** Plays a recording on a terminal that has no page of its own. */
export class Playback {
  /** Seconds of play. */
  position = $state(0)
  playing = $state(false)
  speed = $state(1)
  screen: Run[][] = $state.raw([])
  markers: string[] = $state.raw([])
  readonly cast: Cast
  readonly #terminal: Terminal
  #next = 0 // the first event that the terminal has not got
  #want = 0 // the position that it shall show
  #busy = false
  #over = false

  constructor(cast: Cast, terminal: Terminal) {
    this.cast = cast
    this.#terminal = terminal
    this.#rewind()
  }

  play(): void {
    if (this.position >= this.cast.length) this.seek(0)
    this.playing = true
    let last = performance.now()
    const step = (now: number): void => {
      if (!this.playing || this.#over) return
      this.seek(this.position + (Math.max(now - last, 0) / 1000) * this.speed)
      last = now
      if (this.position >= this.cast.length) this.playing = false
      else requestAnimationFrame(step)
    }
    requestAnimationFrame(step)
  }

  pause(): void {
    this.playing = false
  }

  /** Shows the screen as it was at a position. */
  seek(to: number): void {
    this.position = this.#want = Math.min(Math.max(to, 0), this.cast.length)
    void this.#follow()
  }

  /** Ends the playback for good. */
  end(): void {
    this.#over = true
    this.playing = false
  }

  #rewind(): void {
    this.#terminal.reset()
    this.#terminal.resize(this.cast.columns, this.cast.rows)
    this.#next = 0
  }

  /** Gives the terminal all events up to the wanted position, and draws. The terminal takes text in the background, so one call at a time does it. */
  async #follow(): Promise<void> {
    if (this.#busy) return
    this.#busy = true
    try {
      for (let done = -1; done !== this.#want && !this.#over; ) {
        const to = this.#want
        const { events } = this.cast
        if (this.#next > 0 && events[this.#next - 1]!.at > to) this.#rewind()
        let text = ''
        for (; this.#next < events.length && events[this.#next]!.at <= to; this.#next++) {
          const e = events[this.#next]!
          if (e.code === 'o') text += e.text
          if (e.code !== 'r') continue
          await this.#write(text)
          text = ''
          this.#terminal.resize(...resized(e.text))
        }
        await this.#write(text)
        done = to
      }
    } finally {
      this.#busy = false
    }
    this.screen = lines(this.#terminal)
    this.markers = this.cast.events.slice(0, this.#next).flatMap((e) => (e.code === 'm' ? [e.text] : []))
  }

  #write(text: string): Promise<void> {
    return text ? new Promise((done) => this.#terminal.write(text, done)) : Promise.resolve()
  }
}
