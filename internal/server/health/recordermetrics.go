package health

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/tailplane/tailplane/internal/accessproxy/recording"
)

// RecorderMetrics are the metrics of a recorder.
type RecorderMetrics struct {
	ended   *prometheus.CounterVec // state
	refused *prometheus.CounterVec // none
}

// AddRecorder adds the metrics of a recorder. stats runs at each scrape.
func (m *Metrics) AddRecorder(stats func() recording.DirStats) *RecorderMetrics {
	m.collect(func(emit emitter) {
		s := stats()
		emit("tailplane_recorder_recordings", float64(s.Count))
		emit("tailplane_recorder_live_recordings", float64(s.Live))
		emit("tailplane_recorder_used_bytes", float64(s.Bytes))
		emit("tailplane_recorder_max_bytes", float64(s.MaxBytes))
	},
		metric{"tailplane_recorder_recordings", "Recordings in the directory.", nil},
		metric{"tailplane_recorder_live_recordings", "Recordings that are being written.", nil},
		metric{"tailplane_recorder_used_bytes", "Bytes of all recordings.", nil},
		metric{"tailplane_recorder_max_bytes", "Bytes that all recordings may have.", nil})
	r := &RecorderMetrics{
		ended:   m.counter("tailplane_recorder_ended_total", "Recordings that ended, by state: complete or incomplete.", "state"),
		refused: m.counter("tailplane_recorder_refusals_total", "Connections of nodes that may not send recordings."),
	}
	for _, s := range []recording.State{recording.Complete, recording.Incomplete} {
		r.ended.WithLabelValues(string(s))
	}
	r.refused.WithLabelValues()
	return r
}

// CountEnded counts a recording that has ended.
func (r *RecorderMetrics) CountEnded(i recording.Info) {
	r.ended.WithLabelValues(string(i.State)).Inc()
}

// CountRefused counts a request of a node that may not send recordings.
func (r *RecorderMetrics) CountRefused() { r.refused.WithLabelValues().Inc() }
