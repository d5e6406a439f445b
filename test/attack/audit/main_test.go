package audit

import (
	"testing"

	"github.com/tailplane/tailplane/testkit/attacktest"
)

func TestMain(m *testing.M) { attacktest.Main(m) }
