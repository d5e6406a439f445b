// Keys. They are off where somebody writes, and can be switched off altogether.
import { prefs } from './prefs.svelte.ts'
import { go } from './router.svelte.ts'

type Offer = { filter?: () => void; move?: (by: number) => void }

/** What the view on the page can do by keys. */
class Keys {
  #offers: Offer[] = []
  #g = 0

  /** Takes what a view can do; the function that it returns takes it back. */
  offer(o: Offer): () => void {
    this.#offers.push(o)
    return () => void (this.#offers = this.#offers.filter((x) => x !== o))
  }

  listen(on: { help: () => void; palette: () => void }): () => void {
    const down = (e: KeyboardEvent) => {
      if ((e.ctrlKey || e.metaKey) && !e.altKey && !e.shiftKey && e.key.toLowerCase() === 'k') {
        e.preventDefault()
        on.palette()
        return
      }
      if (!prefs.keys || e.ctrlKey || e.metaKey || e.altKey || e.isComposing || e.defaultPrevented) return
      const t = e.target as HTMLElement | null
      if (t?.closest('input, textarea, select, [contenteditable], dialog')) return
      const top = this.#offers.at(-1)
      if (this.#g && e.timeStamp - this.#g < 1500) {
        this.#g = 0
        const to = pages.find((p) => p.key === e.key)
        if (to) {
          e.preventDefault()
          go(to.path)
        }
        return
      }
      const act: Record<string, (() => void) | undefined> = {
        '?': on.help,
        '/': top?.filter,
        j: () => top?.move?.(1),
        k: () => top?.move?.(-1),
        g: () => (this.#g = e.timeStamp),
      }
      const f = Object.hasOwn(act, e.key) ? act[e.key] : undefined
      if (f) {
        e.preventDefault()
        f()
      }
    }
    addEventListener('keydown', down)
    return () => removeEventListener('keydown', down)
  }
}

export const keys = new Keys()

/** The pages, each with what comes after g. */
export const pages = [
  { path: '/', key: 'o', name: 'Overview', icon: 'overview' },
  { path: '/clusters', key: 'c', name: 'Clusters', icon: 'clusters' },
  { path: '/signins', key: 's', name: 'Sign-ins', icon: 'signins' },
  { path: '/network', key: 'n', name: 'Network', icon: 'network' },
  { path: '/fleet', key: 'f', name: 'Fleet', icon: 'fleet' },
  { path: '/changes', key: 'h', name: 'Changes', icon: 'changes' },
  { path: '/adapters', key: 'a', name: 'Adapters', icon: 'adapters' },
  { path: '/audit', key: 'l', name: 'Audit log', icon: 'audit' },
  { path: '/settings', key: ',', name: 'Settings', icon: 'settings' },
] as const
