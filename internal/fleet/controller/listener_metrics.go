package controller

import (
	"bytes"
	"errors"
	"fmt"
	"math"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// assignedJobsMetric is ARC's metric for the number of jobs that GitHub assigned to a scale set.
const assignedJobsMetric = "gha_assigned_jobs"

// maxAssignedJobs is more than any scale set can have.
const maxAssignedJobs = 1 << 20

// parseAssignedJobs parses the number of jobs that GitHub assigned to a scale set from its listener's metrics,
// in Prometheus' text format. A listener belongs to one set, so Read refuses metrics of several
// sets.
func parseAssignedJobs(text []byte) (int, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	all, err := parser.TextToMetricFamilies(bytes.NewReader(text))
	if err != nil {
		return 0, fmt.Errorf("parse the listener's metrics: %w", err)
	}
	of := all[assignedJobsMetric].GetMetric()
	if len(of) == 0 {
		return 0, errors.New("the listener's metrics have no number of assigned jobs")
	}
	if len(of) > 1 {
		return 0, errors.New("the listener's metrics have the assigned jobs of several scale sets")
	}
	v := of[0].GetUntyped().GetValue()
	if g := of[0].GetGauge(); g != nil {
		v = g.GetValue()
	}
	if math.IsNaN(v) || v < 0 || v > maxAssignedJobs || v != math.Trunc(v) || of[0].GetGauge() == nil && of[0].GetUntyped() == nil {
		return 0, errors.New("the listener's number of assigned jobs is not valid")
	}
	return int(v), nil
}
