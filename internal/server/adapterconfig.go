package server

import (
	"fmt"

	"github.com/tailplane/tailplane/internal/multicluster"
)

// checkConfig validates a configuration as adapters do, for the webhook.
func checkConfig(doc, previous []byte) (wrong, warnings []string) {
	report, err := multicluster.ValidateConfig(doc, previous)
	if err != nil && previous != nil { // no adapter accepted the previous one
		report, err = multicluster.ValidateConfig(doc, nil)
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
