package v1alpha1_test

import (
	"testing"

	"github.com/tailplane/tailplane/testkit/apitest"
)

// The committed deepcopy functions and definitions are what the generator makes of
// the types today.
func TestGeneratedFilesAreFresh(t *testing.T) {
	apitest.Generated(t, "../..", "tailplane.dev")
}
