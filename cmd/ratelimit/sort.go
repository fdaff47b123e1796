package main

import (
	"bufio"
	"container/heap"
	"encoding/binary"
	"io"
	"os"
	"slices"
)

const (
	defaultChunkBytes = 16 << 20

	// maxRuns is how many sorted files of one size lie side by side before they
	// are merged into one, to bound open files and merge buffers.
	maxRuns       = 32
	runBufferSize = 32 << 10
)

// A sorter sorts any number of records, which are bytes, in bounded memory. It
// is stable: records that compare equal stay in the order they were added.
//
// A chunk of records is sorted in memory; when it is full it is written to a
// temporary file, a run, and the runs are merged at the end. Records that fit
// into one chunk never touch the disk.
type sorter struct {
	compare    func(a, b []byte) int
	dir        string // for the runs; whoever made it removes it
	chunkBytes int

	chunk   []byte
	entries []entry
	levels  [][]*os.File // levels[i] are runs of maxRuns^i chunks, oldest first
}

// An entry is where a record stands in the chunk.
type entry struct{ start, length uint32 }

const entrySize = 8

// add copies a record.
func (s *sorter) add(record []byte) error {
	if len(s.chunk)+len(record)+(len(s.entries)+1)*entrySize > s.chunkBytes && len(s.entries) > 0 {
		if err := s.spill(); err != nil {
			return err
		}
	}
	s.entries = append(s.entries, entry{uint32(len(s.chunk)), uint32(len(record))})
	s.chunk = append(s.chunk, record...)
	return nil
}

// sorted returns the records in order. Nothing can be added afterwards.
func (s *sorter) sorted() (iterator, error) {
	if len(s.levels) == 0 {
		s.sortChunk()
		return &chunkIterator{s: s}, nil
	}
	if err := s.spill(); err != nil {
		return nil, err
	}
	s.chunk, s.entries = nil, nil
	var runs []*os.File
	for _, level := range slices.Backward(s.levels) { // a higher level is older
		runs = append(runs, level...)
	}
	return s.merge(runs)
}

// close closes the runs.
func (s *sorter) close() {
	for _, level := range s.levels {
		for _, f := range level {
			f.Close()
		}
	}
	s.levels, s.chunk, s.entries = nil, nil, nil
}

func (s *sorter) record(e entry) []byte { return s.chunk[e.start : e.start+e.length] }

func (s *sorter) sortChunk() {
	slices.SortStableFunc(s.entries, func(a, b entry) int { return s.compare(s.record(a), s.record(b)) })
}

// spill writes the chunk to a run, and merges the runs of a level that is full.
func (s *sorter) spill() error {
	s.sortChunk()
	run, err := s.write(&chunkIterator{s: s})
	if err != nil {
		return err
	}
	s.chunk, s.entries = s.chunk[:0], s.entries[:0]
	for i := 0; ; i++ {
		if i == len(s.levels) {
			s.levels = append(s.levels, nil)
		}
		s.levels[i] = append(s.levels[i], run)
		if len(s.levels[i]) < maxRuns {
			return nil
		}
		all, err := s.merge(s.levels[i])
		if err != nil {
			return err
		}
		if run, err = s.write(all); err != nil {
			return err
		}
		for _, f := range s.levels[i] {
			f.Close()
			os.Remove(f.Name())
		}
		s.levels[i] = nil
	}
}

// write makes a run: each record after its length.
func (s *sorter) write(records iterator) (run *os.File, err error) {
	f, err := os.CreateTemp(s.dir, "run-*")
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	w := bufio.NewWriterSize(f, runBufferSize)
	var length [binary.MaxVarintLen64]byte
	for {
		record, err := records.next()
		if err == io.EOF {
			return f, w.Flush()
		}
		if err != nil {
			return nil, err
		}
		w.Write(binary.AppendUvarint(length[:0], uint64(len(record)))) // the error stays until Flush
		if _, err := w.Write(record); err != nil {
			return nil, err
		}
	}
}

// merge reads runs, oldest first, as one.
func (s *sorter) merge(runs []*os.File) (iterator, error) {
	m := &merger{compare: s.compare}
	for i, f := range runs {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			return nil, err
		}
		r := &runReader{r: bufio.NewReaderSize(f, runBufferSize), order: i}
		switch err := r.advance(); err {
		case nil:
			m.runs = append(m.runs, r)
		case io.EOF:
		default:
			return nil, err
		}
	}
	heap.Init(m)
	return m, nil
}

// An iterator gives records, and io.EOF after the last. A record is valid until
// the following call.
type iterator interface {
	next() ([]byte, error)
}

// A chunkIterator gives the records of a sorted chunk.
type chunkIterator struct {
	s *sorter
	i int
}

func (c *chunkIterator) next() ([]byte, error) {
	if c.i == len(c.s.entries) {
		return nil, io.EOF
	}
	c.i++
	return c.s.record(c.s.entries[c.i-1]), nil
}

// A runReader stands at one record of a run.
type runReader struct {
	r      *bufio.Reader
	order  int // of the run: the oldest is 0
	record []byte
}

func (r *runReader) advance() error {
	n, err := binary.ReadUvarint(r.r)
	if err != nil {
		return err
	}
	r.record = slices.Grow(r.record[:0], int(n))[:n]
	if _, err = io.ReadFull(r.r, r.record); err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// A merger is a heap of runs, the one with the least record on top.
type merger struct {
	compare func(a, b []byte) int
	runs    []*runReader
	given   bool // the top's record has been given out
}

func (m *merger) next() ([]byte, error) {
	if m.given {
		m.given = false
		switch err := m.runs[0].advance(); err {
		case nil:
			heap.Fix(m, 0)
		case io.EOF:
			heap.Pop(m)
		default:
			return nil, err
		}
	}
	if len(m.runs) == 0 {
		return nil, io.EOF
	}
	m.given = true
	return m.runs[0].record, nil
}

func (m *merger) Len() int      { return len(m.runs) }
func (m *merger) Swap(i, j int) { m.runs[i], m.runs[j] = m.runs[j], m.runs[i] }
func (m *merger) Push(x any)    { m.runs = append(m.runs, x.(*runReader)) }

func (m *merger) Less(i, j int) bool {
	a, b := m.runs[i], m.runs[j]
	if c := m.compare(a.record, b.record); c != 0 {
		return c < 0
	}
	return a.order < b.order
}

func (m *merger) Pop() any {
	last := m.runs[len(m.runs)-1]
	m.runs = m.runs[:len(m.runs)-1]
	return last
}
