package v1alpha1_test

import (
	"testing"

	"github.com/tailplane/tailplane/testkit/apitest"
)

// The committed deepcopy functions and CRDs match the generator's output for the current types.
func TestGeneratedFilesAreFresh(t *testing.T) {
	apitest.Generated(t, "../..", "tailplane.dev")
}
