//go:build !unix

package audit

import "os"

// lock does nothing. Servers run on Unix; other systems use only Verify.
func lock(*os.File) error { return nil }
