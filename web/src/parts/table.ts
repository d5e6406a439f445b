import type { Value } from '../text/rows.ts'

/** A column of a table. */
export type Column<R> = {
  key: string
  label: string
  /** The value for sorting and filtering. */
  value: (r: R) => Value
  /** The width on a wide page, in em; the first column takes the remaining width. */
  width?: number
  /** 1 is always shown; the others are hidden on narrow pages, 4 first. */
  rank?: 1 | 2 | 3 | 4
  end?: boolean
}
