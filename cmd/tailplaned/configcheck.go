package main

import (
	"fmt"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

// checkConfig says what adapters would say of their document, for the webhook.
func checkConfig(doc, previous []byte) (wrong, warnings []string) {
	report, err := apiproxy.Validate(doc, previous)
	if err != nil && previous != nil { // no adapter took the one before
		report, err = apiproxy.Validate(doc, nil)
	}
	if err != nil {
		return []string{err.Error()}, nil
	}
	for _, f := range report.Errors {
		wrong = append(wrong, fmt.Sprint(f))
	}
	for _, f := range report.Warnings {
		warnings = append(warnings, fmt.Sprint(f))
	}
	return wrong, warnings
}
