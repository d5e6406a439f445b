package signin_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/tailplane/tailplane/testkit/openapitest"
)

// conformance compares the responses to the requests of all tests with the OpenAPI document.
var conformance *openapitest.Checker

func TestMain(m *testing.M) {
	document, err := os.ReadFile("../../docs/reference/api/openapi.json")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	conformance = openapitest.New(document)
	conformance.Main(m)
}
