// LineEditor: one line, or what is pasted, typed by a person: cursor keys, history, search (Ctrl-R), the user's ~/.editrc. A
// terminal on stdin and stdout is needed.
//
// A paste of several lines arrives as one input (bracketed paste). One object at a time; the owner's thread.
#pragma once

#include <memory>
#include <string>

namespace spate {

class LineEditor {
 public:
  enum class Event { kLine, kInterrupt, kEnd };  // Ctrl-C: the line is given up; Ctrl-D on an empty line
  struct Input {
    Event event = Event::kLine;
    std::string text;  // without the newline at its end; with kInterrupt what had been typed
  };

  // The history is read from the file and kept in it, readable by its owner alone; empty: in memory.
  explicit LineEditor(std::string history_file);
  ~LineEditor();
  LineEditor(const LineEditor&) = delete;
  LineEditor& operator=(const LineEditor&) = delete;

  Input read(const std::string& prompt);
  void add_history(const std::string& text);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace spate
