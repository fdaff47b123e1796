package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
)

// maxLine is the longest line that is read. Servers limit requests to a few
// kilobytes; what is longer is no log line, and must not fill the memory.
const maxLine = 1 << 20

// A lineReader reads a log line by line.
type lineReader struct {
	r      *bufio.Reader
	long   []byte // a line longer than r's buffer
	number int    // of the line last read, from 1
}

// newLineReader reads r, unpacked if it is gzipped.
func newLineReader(r io.Reader) (*lineReader, error) {
	br := bufio.NewReaderSize(r, 64<<10)
	if magic, _ := br.Peek(2); bytes.Equal(magic, []byte{0x1f, 0x8b}) {
		z, err := gzip.NewReader(br)
		if err != nil {
			return nil, err
		}
		br = bufio.NewReaderSize(z, 64<<10)
	}
	return &lineReader{r: br}, nil
}

// next returns the next line without its ending, cut at maxLine if it is longer.
// The line is valid until the following call. After the last it returns io.EOF.
func (l *lineReader) next() (line []byte, tooLong bool, err error) {
	line, err = l.r.ReadSlice('\n')
	if errors.Is(err, bufio.ErrBufferFull) {
		l.long = l.long[:0]
		for errors.Is(err, bufio.ErrBufferFull) {
			l.keep(line)
			line, err = l.r.ReadSlice('\n')
		}
		l.keep(line)
		line = l.long
	}
	if err != nil && (err != io.EOF || len(line) == 0) {
		return nil, false, err
	}
	l.number++
	line = bytes.TrimSuffix(line, []byte("\n"))
	line = bytes.TrimSuffix(line, []byte("\r"))
	if len(line) > maxLine {
		line, tooLong = line[:maxLine], true
	}
	if l.number == 1 {
		line = bytes.TrimPrefix(line, []byte("\xef\xbb\xbf")) // some editors mark UTF-8
	}
	return line, tooLong, nil
}

// keep adds part to the long line, as far as it matters.
func (l *lineReader) keep(part []byte) {
	const most = maxLine + len("x\r\n")
	l.long = append(l.long, part[:min(len(part), most-len(l.long))]...)
}
