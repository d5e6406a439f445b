package forge

import "github.com/tailplane/tailplane/internal/fleet/forge/rate"

// Rate is how often a forge may be asked, as it said last; the zero Rate: it never
// did.
type Rate = rate.Rate

// longestWait bounds what a forge may ask for.
const longestWait = rate.Longest
