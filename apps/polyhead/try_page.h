// Writes the pages of `polyhead try -o`: a trained model's answer with its attention weights.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "answer_page.h"
#include "polyhead/models/image_classifier.h"
#include "polyhead/models/sentence_chooser.h"
#include "polyhead/models/text_classifier.h"
#include "polyhead/models/translator.h"
#include "polyhead/viewer.h"

namespace polyhead::app {

struct PageFile {
  std::string path;
  std::string model;   // the model's folder, which the page names
  std::string answer = {};  // the answer in one line
  std::string parts = {};   // what each part of the model adds to the answer; for a translation what its marks mean
};

// The content of a page about the answer to an image [height,width], with pixels from 0 to config.white, or to a text of these sentences. name: the image, for
// the reader.
AnswerPage answer_page(const models::ImageClassifier& model, ConstTensorView image, std::string name, const models::ClassifiedImage& answer);
AnswerPage answer_page(const models::SentenceChooser& model, std::span<const std::string> sentences, const models::ChosenSentence& answer);

// The class and its probability in words.
std::string best_class(const models::ClassifiedImage& answer);

void write_page(const PageFile& file, const models::ImageClassifier& model, ConstTensorView image, const models::ClassifiedImage& answer);
// The page's text has the number and the score of each sentence.
void write_page(const PageFile& file, const models::SentenceChooser& model, std::span<const std::string> sentences, const models::ChosenSentence& answer);
void write_page(const PageFile& file, const models::TextModel& model, const std::string& text, const models::ClassifiedText& answer);
// links: the pairs of source and target tokens that are known to belong together, or nullopt.
void write_page(const PageFile& file, const models::Translator& model, const std::string& text, const models::Translation& answer, std::optional<viewer::Links> links);

}  // namespace polyhead::app
