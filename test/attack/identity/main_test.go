package identity

import (
	"testing"

	"github.com/tailplane/tailplane/testkit/testenv"
)

func TestMain(m *testing.M) { testenv.Main(m) }
