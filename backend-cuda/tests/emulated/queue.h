// What the emulated libraries share: work that is put at the end of a stream of the emulated driver (cuda.cpp).

#pragma once
#include <functional>

// Adds work to a stream. It returns whether it is done; if not, as a message may not be whose peer has not come,
// it is called again. `name` is what a fault of it is told with. A CUresult.
extern "C" int emulated_enqueue(void* stream, const char* name, std::function<bool()>* work);

// Writes down what a thread does, in order, where EMULATED_NOTES names a file: its number, a sign and a name.
extern "C" void emulated_note(char sign, const char* name);
