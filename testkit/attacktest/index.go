package attacktest

import (
	"strings"
	"testing"
)

// Index contains the id of every row of the list of attacks that has a test in a package in test/attack. The value
// names the parts of the row that no test can check yet, and the reason. The test of package attack compares Index
// with the tests.
var Index = map[string][]string{
	"ID-01": nil, "ID-02": nil,
	"ID-03": {"verbs for people only: there are none without elevation"},
	"ID-04": nil,
	"ID-05": nil,
	"ID-06": nil, "ID-07": nil, "ID-08": nil, "ID-09": nil, "ID-10": nil, "ID-11": nil, "ID-12": nil, "ID-13": nil, "ID-14": nil, "ID-15": nil, "ID-16": nil,

	"SI-01": nil, "SI-02": nil, "SI-03": nil, "SI-04": nil, "SI-05": nil, "SI-06": nil, "SI-07": nil,
	"SI-08": {"streams through our own proxy: there is no API proxy for people yet"},
	"SI-09": nil,
	"SI-10": nil,
	"SI-11": nil,
	"SI-12": nil,
	"SI-13": {"elevation and break-glass: they are not part of sign-in yet"},
	"SI-14": nil,
	"SI-15": nil,
	"SI-16": nil, "SI-17": nil, "SI-18": nil, "SI-19": nil, "SI-20": nil,

	"GO-01": nil, "GO-02": nil, "GO-03": nil, "GO-04": nil, "GO-05": nil, "GO-06": nil, "GO-07": nil, "GO-08": nil, "GO-09": nil, "GO-10": nil, "GO-11": nil,

	"CL-01": nil, "CL-02": nil, "CL-03": nil, "CL-04": nil, "CL-05": nil, "CL-06": nil, "CL-07": nil, "CL-08": nil,

	"PX-01": nil, "PX-02": nil, "PX-03": nil, "PX-05": nil, "PX-06": nil, "PX-07": nil, "PX-08": nil, "PX-09": nil, "PX-10": nil, "PX-11": nil, "PX-12": nil, "PX-13": nil, "PX-14": nil,
	"PX-15": nil, "PX-16": nil, "PX-17": nil, "PX-18": nil, "PX-19": nil, "PX-20": nil, "PX-21": nil, "PX-22": nil, "PX-24": nil, "PX-25": nil,

	"AD-01": nil, "AD-02": nil, "AD-03": nil, "AD-04": nil, "AD-05": nil, "AD-06": nil, "AD-07": nil, "AD-08": nil, "AD-09": nil, "AD-10": nil, "AD-11": nil,

	"IN-01": nil, "IN-02": nil, "IN-03": nil, "IN-04": nil, "IN-05": nil, "IN-06": nil, "IN-07": nil, "IN-08": nil,

	"PL-01": nil, "PL-02": nil, "PL-03": nil, "PL-04": nil, "PL-05": nil, "PL-07": nil, "PL-08": nil, "PL-10": nil,

	"MC-01": nil, "MC-02": nil, "MC-03": nil, "MC-04": nil, "MC-05": nil, "MC-06": nil,

	"GW-01": nil, "GW-02": nil, "GW-03": nil, "GW-04": nil, "GW-05": nil, "GW-06": nil, "GW-07": nil, "GW-08": nil, "GW-09": nil, "GW-10": nil, "GW-11": nil, "GW-12": nil,

	"FL-01": nil, "FL-02": nil, "FL-03": nil, "FL-04": nil, "FL-05": nil, "FL-06": nil,

	"AU-01": nil, "AU-02": nil, "AU-03": nil, "AU-04": nil, "AU-05": nil, "AU-06": nil, "AU-07": nil,

	"DS-01": nil, "DS-02": nil, "DS-03": nil, "DS-04": nil,
	"DS-05": {"signature, SBOM and provenance: there are no releases yet"},
}

// Fronts contains the rows that apply to two proxies, with the areas that test them. Each of the two has its own test of
// the row. Every other row has one test.
var Fronts = map[string][]string{
	"PX-01": bothProxies, "PX-02": bothProxies, "PX-03": bothProxies, "PX-06": bothProxies, "PX-07": bothProxies, "PX-08": bothProxies, "PX-10": bothProxies,
	"PX-11": bothProxies, "PX-13": bothProxies,
}

var bothProxies = []string{"accessproxy", "adapter"}

// Missing skips a part that Index lists as missing.
func Missing(t *testing.T, part string) {
	t.Helper()
	row, _, _ := strings.Cut(strings.TrimPrefix(t.Name(), "Test"), "_")
	for _, sentence := range Index[row[:2]+"-"+row[2:]] {
		if strings.HasPrefix(sentence, part+": ") {
			t.Skip("SKIP " + sentence)
		}
	}
	t.Fatalf("%q is not in the index as missing", part)
}
