/** Descriptions of keyboard shortcuts. A space separates keys that a person presses one after another. */
export const keys: [keys: string, what: string][] = [
  ['Ctrl+K', 'Find a page, an object or a setting'],
  ['?', 'Keyboard shortcuts'],
  ['/', 'Filter'],
  ['j', 'Next row'],
  ['k', 'Previous row'],
  ['Enter', 'Open the row'],
  ['Esc', 'Close'],
  ['g o', 'Overview'],
  ['g c', 'Clusters'],
  ['g s', 'Sign-ins'],
  ['g n', 'Network'],
  ['g f', 'Fleet'],
  ['g h', 'Changes'],
  ['g a', 'Adapters'],
  ['g l', 'Audit log'],
  ['g ,', 'Settings'],
]
