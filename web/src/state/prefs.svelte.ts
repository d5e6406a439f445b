// The preferences of a person, stored in the browser. They contain no identity.
import type { Zone } from '../text/time.ts'

export type Theme = 'system' | 'light' | 'dark'
export type Density = 'compact' | 'comfortable'

const key = 'tailplane.preferences'

type Stored = { theme: Theme; density: Density; zone: Zone; keys: boolean }

function stored(): Stored {
  const p: Stored = { theme: 'system', density: 'compact', zone: 'local', keys: true }
  try {
    const s = JSON.parse(localStorage.getItem(key) ?? '{}') as Partial<Record<keyof Stored, unknown>>
    if (s.theme === 'light' || s.theme === 'dark') p.theme = s.theme
    if (s.density === 'comfortable') p.density = s.density
    if (s.zone === 'utc') p.zone = s.zone
    if (s.keys === false) p.keys = false
  } catch {
    // The storage can be disabled or contain values of another version. Then the defaults apply.
  }
  return p
}

export const prefs: Stored = $state(stored())

/** Applies the preferences to the page, and stores them when they change. */
export function applyPrefs(): void {
  $effect(() => {
    document.documentElement.dataset.theme = prefs.theme
    document.documentElement.dataset.density = prefs.density
    try {
      localStorage.setItem(key, JSON.stringify(prefs))
    } catch {
      // Without storage, the preferences last until the page is closed.
    }
  })
}
