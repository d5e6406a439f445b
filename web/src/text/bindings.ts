/** Descriptions of keyboard shortcuts: a space separates keys that are pressed one after another. */
export const keys: [keys: string, what: string][] = [
  ['Ctrl+K', 'Find a page, an object or a setting'],
  ['?', 'These keys'],
  ['/', 'Filter'],
  ['j', 'Next row'],
  ['k', 'Row before'],
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
