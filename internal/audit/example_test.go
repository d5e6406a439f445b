package audit_test

import (
	"fmt"
	"os"
	"strings"

	"github.com/tailplane/tailplane/internal/audit"
)

// An attacker replaces alice by bob in an entry.
func ExampleVerify() {
	text, err := os.ReadFile("testdata/version1.jsonl")
	if err != nil {
		fmt.Println(err)
		return
	}
	key, err := audit.ParsePublicKey("ed25519:O2onvM62pC1io6jQKm8Nc2UyFXcd4kOmOsBIoYtZ2ik")
	if err != nil {
		fmt.Println(err)
		return
	}
	check := audit.Check{Keys: []audit.PublicKey{key}}
	for _, record := range []string{
		string(text),
		strings.Replace(string(text), `"R0003","actor":{"login":"alice@`, `"R0003","actor":{"login":"bob@`, 1),
	} {
		report, err := audit.Verify(check, audit.Source{Name: "audit.jsonl", Reader: strings.NewReader(record)})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(report.OK(), report.Entries, "entries,", report.Lost, "lost")
		for _, f := range report.Findings {
			fmt.Println(f, f.At.RequestID)
		}
	}
	// Output:
	// true 7 entries, 0 lost
	// false 6 entries, 0 lost
	// audit.jsonl:5: edited: the text does not match its hash R0003
}
