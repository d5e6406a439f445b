package plane

import (
	"testing"

	"github.com/tailplane/tailplane/testkit/openapitest"
)

// Conformance compares the responses to the requests of all tests with the OpenAPI document.
var Conformance = openapitest.New(document)

func TestMain(m *testing.M) { Conformance.Main(m) }
