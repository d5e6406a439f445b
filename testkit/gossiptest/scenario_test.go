package gossiptest

import (
	"strings"
	"testing"
	"time"
)

func TestParse(t *testing.T) {
	got, err := Parse(strings.Fields("N=100 LOSS=0.5 JITTER=300ms SECONDS=12 SEED=7"))
	want := Scenario{100, .5, 300 * time.Millisecond, 12 * time.Second, 7}
	if err != nil || got != want {
		t.Errorf("%+v, %v", got, err)
	}
	if again, err := Parse(got.Args()); err != nil || again != want {
		t.Errorf("%v is read as %+v, %v", got.Args(), again, err)
	}
	switch got, err := Parse(nil); {
	case err != nil:
		t.Error(err)
	case got.N != 10:
		t.Errorf("got.N = %v, want 10", got.N)
	case got.Watch != 30*time.Second:
		t.Errorf("got.Watch = %v, want %v", got.Watch, 30*time.Second)
	}
	const heading = "100 members, 50 % of messages lost, 5 to 25 ms one way and up to 300ms of jitter, watched for 12s, seed 7"
	if want.String() != heading {
		t.Errorf("%q", want.String())
	}
}

func TestParseRefuses(t *testing.T) {
	for args, names := range map[string]string{
		"N=1": "from 2 to 2000", "N=0": "from 2", "N=-3": "from 2", "N=2001": "2000", "N=ten": "N=ten", "N=": "N=:", "N=1e2": "N=1e2",
		"LOSS=1": "0.9", "LOSS=50": "from 0 to 0.9", "LOSS=-0.1": "from 0", "LOSS=NaN": "LOSS=NaN", "LOSS=Inf": "LOSS=Inf", "LOSS=half": "LOSS=half",
		"JITTER=300": "with a unit", "JITTER=-1s": "JITTER=-1s", "JITTER=6s": "at most 5s",
		"SECONDS=0": "from 1 to 3600", "SECONDS=3601": "3600", "SECONDS=1.5": "whole seconds",
		"SEED=-1": "SEED=-1", "SEED=abc": "SEED=abc",
		"NODES=5": `"NODES" is unknown`, "n=5": `"n" is unknown`, "5": "not NAME=VALUE", "N=5 N=6": "N occurs twice",
	} {
		if _, err := Parse(strings.Fields(args)); err == nil || !strings.Contains(err.Error(), names) {
			t.Errorf("%s: %v", args, err)
		}
	}
}

func TestPrint(t *testing.T) {
	var b strings.Builder
	s, err := Parse(nil)
	if err != nil {
		t.Fatal(err)
	}
	err = Print(&b, s, []Result{
		{Protocol: "one", Join: 900 * time.Millisecond, Death: 3150 * time.Millisecond, False: 2, Messages: 20.04, Bytes: 6400},
		{Protocol: "two", Join: time.Second},
		{Protocol: "three", Skipped: "there is no such thing"},
	})
	for _, want := range []string{"0.90 s", "3.15 s", "20.0", "6.4", "not in 5m0s", "three   skipped: there is no such thing"} {
		if err != nil || !strings.Contains(b.String(), want) {
			t.Errorf("%q is not in this (%v):\n%s", want, err, &b)
		}
	}
}
